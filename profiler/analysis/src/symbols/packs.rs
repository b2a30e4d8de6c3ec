//! What an empty parameter pack leaves in a demangled name.
//!
//! cpp_demangle writes the comma before it and what the pack's pattern adds to each type: `f<int, >(int, &&)`, where other
//! tools write `f<int>(int)`.

/// Symbols behind `operator`, each before those that it begins with.
const OPERATORS: [&str; 38] = [
    "<=>", "<<=", ">>=", "->*", "()", "[]", "<<", ">>", "<=", ">=", "==", "!=", "&&", "||", "++", "--", "+=",
    "-=", "*=", "/=", "%=", "^=", "&=", "|=", "->", "<", ">", "=", "!", "&", "|", "+", "-", "*", "/", "%",
    "^", ",",
];

/// A list of arguments that is being written.
struct List {
    close: char,
    /// `(*)` and `(&)` belong to the type of a pointer or a reference where they don't follow a name.
    is_declarator: bool,
    /// Where the argument begins, and where the comma before it does.
    argument: usize,
    comma: usize,
    kept: usize,
}

impl List {
    fn end_argument(&mut self, out: &mut String, is_last: bool) {
        let alone = self.kept == 0 && is_last;
        if is_nothing(&out[self.argument..]) && !(self.is_declarator && alone) {
            out.truncate(self.comma);
        } else {
            self.kept += 1;
        }
    }

    fn begin_argument(&mut self, out: &mut String) {
        self.comma = out.len();
        out.push_str(if self.kept > 0 { ", " } else { "" });
        self.argument = out.len();
    }
}

/// The name without arguments that are none; as it is if its brackets don't pair up.
pub(crate) fn without_empty_packs(name: String) -> String {
    let mut out = String::with_capacity(name.len());
    let mut lists: Vec<List> = Vec::new();
    let mut rest = name.as_str();
    while let Some(c) = rest.chars().next() {
        if rest.starts_with("operator") && !out.ends_with(|c: char| c.is_alphanumeric() || c == '_') {
            let behind = &rest["operator".len()..];
            let symbol = OPERATORS.iter().find(|symbol| behind.starts_with(**symbol));
            let len = "operator".len() + symbol.map_or(0, |symbol| symbol.len());
            out.push_str(&rest[..len]);
            rest = &rest[len..];
            continue;
        }
        rest = &rest[c.len_utf8()..];
        match (c, lists.last_mut()) {
            ('<' | '(', _) => {
                let is_declarator = c == '(' && out.ends_with([' ', '(', '<']);
                out.push(c);
                let close = if c == '<' { '>' } else { ')' };
                lists.push(List { close, is_declarator, argument: out.len(), comma: out.len(), kept: 0 });
            }
            ('>', _) if out.ends_with('-') => out.push(c),
            ('>' | ')', Some(list)) if list.close == c => {
                list.end_argument(&mut out, true);
                lists.pop();
                // As elsewhere in these names.
                out.push_str(if c == '>' && out.ends_with('>') { " " } else { "" });
                out.push(c);
            }
            ('>' | ')', _) => return name,
            (',', Some(list)) => {
                list.end_argument(&mut out, false);
                list.begin_argument(&mut out);
                rest = rest.strip_prefix(' ').unwrap_or(rest);
            }
            _ => out.push(c),
        }
    }
    if lists.is_empty() { out } else { name }
}

/// Whether this is a type of which only what a pattern adds is there.
fn is_nothing(argument: &str) -> bool {
    let mut rest = argument;
    loop {
        rest = rest.trim_start_matches([' ', '&', '*']);
        match rest.strip_prefix("const").or_else(|| rest.strip_prefix("volatile")) {
            Some(behind) if behind.is_empty() || behind.starts_with([' ', '&', '*']) => rest = behind,
            _ => return rest.is_empty(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::without_empty_packs;

    #[test]
    fn what_a_pack_leaves_is_taken_out() {
        for (name, without) in [
            ("std::make_unique<Order, >(&&)", "std::make_unique<Order>()"),
            ("f<>(&&)", "f<>()"),
            ("g<P<>, >(P<>, &&)", "g<P<> >(P<>)"),
            ("h<int, , 3>(std::tuple<>, *)", "h<int, 3>(std::tuple<>)"),
            ("k2<void, >(void (*)(int, &&))", "k2<void>(void (*)(int))"),
            ("P<>::m<>( const&)", "P<>::m<>()"),
            ("f<, int>(&&, int)", "f<int>(int)"),
            ("a::operator(), >(int)", "a::operator(), >(int)"),
            ("T<int, >::operator()<>(int, &&) const", "T<int>::operator()<>(int) const"),
        ] {
            assert_eq!(without_empty_packs(name.to_owned()), without);
        }
    }

    #[test]
    fn all_else_is_left() {
        for name in [
            "main",
            "k<void>(void (*)())",
            "f(int (&) [3], void (&&)(int))",
            "g<void (*)(), int*>(int const*, char const* const&)",
            "std::map<int, std::vector<int, std::allocator<int> > >::operator[](int&&)",
            "a::operator,(b, c&)",
            "operator&&(a const&, a const&)",
            "operator<< <d>(e, f<g, h>&)",
            "a<b>::operator<=>(c<d, e>)",
            "a::operator->() const",
            "(anonymous namespace)::f<int>({lambda(int, char)#1}, (anonymous namespace)::g) const",
            "operator new(unsigned long, std::align_val_t)",
            "constant(const_iterator, volatile_t)",
            "a<b, ",
            "a, >b",
        ] {
            assert_eq!(without_empty_packs(name.to_owned()), name);
        }
    }
}
