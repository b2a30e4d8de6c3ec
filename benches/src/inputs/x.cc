// Templates, containers, algorithms and streams, so that the compiler has something to do.
#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <sstream>
#include <string>
#include <unordered_map>
#include <vector>

template <int N> struct Fold {
    template <class F> static auto run(F f) { return f(N) + Fold<N - 1>::run(f); }
};
template <> struct Fold<0> {
    template <class F> static auto run(F f) { return f(0); }
};

struct Shape {
    virtual ~Shape() = default;
    virtual double area() const = 0;
    virtual std::string name() const = 0;
};
template <int I> struct Poly : Shape {
    std::vector<double> sides = std::vector<double>(I + 3, 1.5);
    double area() const override { return std::accumulate(sides.begin(), sides.end(), 0.0) * I; }
    std::string name() const override { return "poly" + std::to_string(I); }
};

template <int... I> std::vector<std::unique_ptr<Shape>> shapes(std::integer_sequence<int, I...>) {
    std::vector<std::unique_ptr<Shape>> all;
    (all.push_back(std::make_unique<Poly<I>>()), ...);
    return all;
}

std::string report(int n) {
    std::map<std::string, std::vector<double>> by_name;
    std::unordered_map<int, std::function<int(int)>> functions;
    for (auto &shape : shapes(std::make_integer_sequence<int, 60>{}))
        by_name[shape->name()].push_back(shape->area());
    for (int i = 0; i < n; i++)
        functions[i] = [i, n](int x) { return Fold<30>::run([=](int k) { return k * x + i % n; }); };
    std::ostringstream out;
    for (auto &[name, areas] : by_name) {
        std::stable_sort(areas.begin(), areas.end(), std::greater<>());
        out << name << ' ' << areas.front() << '\n';
    }
    for (auto &[key, function] : functions)
        out << key << ' ' << function(key) << '\n';
    return out.str();
}
