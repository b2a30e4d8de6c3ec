//! Long function names on narrow terminals.

use super::words::{columns, folded};
use std::borrow::Cow;

const STRING: &str = "std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >";

/// The name in at most `width` columns. What tells least goes first: the spelling of `std::string`, then
/// what stands between `<` and `>`, then the parameters; at last the middle, whatever it is.
pub fn abbreviated(name: &str, width: usize) -> Cow<'_, str> {
    if columns(name) <= width {
        return Cow::Borrowed(name);
    }
    let mut short = name.replace(STRING, "std::string");
    for (open, close) in [('<', '>'), ('(', ')')] {
        if columns(&short) <= width {
            break;
        }
        if let Some(emptied) = emptied(&short, open, close) {
            short = emptied;
        }
    }
    Cow::Owned(folded(&short, width).into_owned())
}

/// `…` in place of all that stands between these brackets; `None` when they don't pair up.
fn emptied(name: &str, open: char, close: char) -> Option<String> {
    let mut out = String::new();
    let mut depth = 0_u32;
    for (at, c) in name.char_indices() {
        let (before, rest) = (&name[..at], &name[at + c.len_utf8()..]);
        // Some belong to a name: operator<, operator->, operator(), (anonymous namespace).
        let literal = match c {
            '(' => before.ends_with("operator") || rest.starts_with("anonymous "),
            ')' => before.ends_with("operator(") || before.ends_with("(anonymous namespace"),
            '>' if before.ends_with('-') => true,
            _ => operator_at_end(before),
        };
        if c == open && !literal {
            depth += 1;
            if depth == 1 {
                out.push(open);
                out.push_str(if rest.starts_with(close) { "" } else { "…" });
            }
        } else if c == close && !literal {
            depth = depth.checked_sub(1)?;
        }
        if depth == 0 {
            out.push(c);
        }
    }
    (depth == 0).then_some(out)
}

/// Whether the text ends in `operator`, or in that and a part of its symbol.
fn operator_at_end(before: &str) -> bool {
    let name = before.trim_end_matches(['<', '>', '=', '-', '!']);
    before.len() - name.len() <= 2 && name.ends_with("operator")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_tells_least_goes_first() {
        let name = "std::map<std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >, int>::at(int)";
        for (width, short) in [
            (200, name),
            (40, "std::map<std::string, int>::at(int)"),
            (30, "std::map<…>::at(int)"),
            (18, "std::map<…>::at(…)"),
            (9, "std:…t(…)"),
        ] {
            assert_eq!(abbreviated(name, width), short);
        }
    }

    #[test]
    fn brackets_of_names_are_left_alone() {
        for (name, empty) in [
            ("a<b<c> >::operator<< <d>(e)", "a<…>::operator<< <…>(e)"),
            ("a<b>::operator->()", "a<…>::operator->()"),
            ("a<b>::operator<=>(c<d>)", "a<…>::operator<=>(c<…>)"),
            ("x::operator>>(a<b>&)", "x::operator>>(a<…>&)"),
            ("a<b>::operator<(c<d>)", "a<…>::operator<(c<…>)"),
            ("plain", "plain"),
        ] {
            assert_eq!(emptied(name, '<', '>').as_deref(), Some(empty), "{name}");
        }
        let call = "(anonymous namespace)::f<int>::operator()(int, (anonymous namespace)::g) const";
        assert_eq!(
            emptied(call, '(', ')').as_deref(),
            Some("(anonymous namespace)::f<int>::operator()(…) const")
        );
        assert_eq!(emptied("f::operator-(int)", '(', ')').as_deref(), Some("f::operator-(…)"));
        assert_eq!(emptied("f::operator<(int)", '(', ')').as_deref(), Some("f::operator<(…)"));
        assert_eq!(emptied("a<b", '<', '>'), None);
        assert_eq!(emptied("a>b", '<', '>'), None);
        assert_eq!(emptied("f()", '(', ')').as_deref(), Some("f()"));
    }
}
