CREATE TABLE t(a INTEGER PRIMARY KEY, b TEXT, c REAL);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 150000)
  INSERT INTO t SELECT i, 'text ' || (i * 7919 % 10007), i / 3.0 FROM n;
CREATE INDEX i ON t(b);
SELECT count(*), count(DISTINCT b), round(sum(c), 3) FROM t;
SELECT b, count(*), group_concat(a) FROM t GROUP BY b ORDER BY 2 DESC, 1 LIMIT 5;
SELECT count(*) FROM t x JOIN t y ON x.b = y.b WHERE x.a < 2000;
UPDATE t SET b = upper(b) || a WHERE a % 3 = 0;
DELETE FROM t WHERE a % 5 = 0;
SELECT count(*), max(length(b)) FROM t;
