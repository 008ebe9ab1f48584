//! Sources in Rust: which names they import, use and define, and what people read in them.

use std::collections::BTreeSet;
use std::ops::Range;

use proc_macro2::{Delimiter, Literal, TokenStream, TokenTree};
use syn::{ItemUse, Lit, UseTree};

/// The names in a source, those in attributes and in macros included.
#[derive(Debug, Default)]
pub struct Names {
    pub imports: Vec<Import>,
    /// Items that the source defines.
    pub defined: BTreeSet<String>,
    /// Paths outside of imports; a single name is a path, too.
    pub used: BTreeSet<Vec<String>>,
}

/// One name that a `use` brings into scope.
#[derive(Debug)]
pub struct Import {
    /// `*` for all names.
    pub name: String,
    pub path: Vec<String>,
    pub is_reexport: bool,
}

/// A string literal, or comments on lines that follow each other.
#[derive(Debug, PartialEq)]
pub struct Text {
    pub line: usize,
    pub is_comment: bool,
    pub text: String,
}

impl Names {
    pub fn of(source: &str) -> Self {
        let mut names = Self::default();
        names.scan(parse(source));
        names
    }

    /// The same without the items behind `#[cfg(test)]`.
    pub fn outside_tests(source: &str) -> Self {
        let mut names = Self::default();
        names.scan(without_tests(parse(source)));
        names
    }

    fn scan(&mut self, stream: TokenStream) {
        const DEFINING: [&str; 9] =
            ["struct", "enum", "trait", "fn", "const", "static", "type", "union", "macro_rules"];
        let trees: Vec<TokenTree> = stream.into_iter().collect();
        let mut at = 0;
        while let Some(tree) = trees.get(at) {
            match tree {
                TokenTree::Group(group) => self.scan(group.stream()),
                TokenTree::Ident(first) if first == "use" => {
                    let len = trees[at..].iter().take_while(|tree| !is_sign(tree, ';')).count();
                    // Otherwise it is the `use<'a>` of a type.
                    if let Ok(item) = syn::parse2::<ItemUse>(trees[at..].iter().take(len + 1).cloned().collect()) {
                        self.import(&item.tree, &[], at > 0 && is_visibility(&trees[at - 1]));
                        at += len;
                    }
                }
                TokenTree::Ident(first) => {
                    let mut path = vec![first.to_string()];
                    while let Some([one, other, TokenTree::Ident(next)]) = trees.get(at + 1..at + 4)
                        && is_sign(one, ':')
                        && is_sign(other, ':')
                    {
                        path.push(next.to_string());
                        at += 3;
                    }
                    if DEFINING.contains(&path[0].as_str()) {
                        let names = trees[at + 1..].iter().filter_map(|tree| match tree {
                            TokenTree::Ident(name) => Some(name.to_string()),
                            _ => None,
                        });
                        self.defined.extend(names.filter(|name| name != "mut").take(1));
                    }
                    self.used.insert(path);
                }
                TokenTree::Punct(_) | TokenTree::Literal(_) => {}
            }
            at += 1;
        }
    }

    fn import(&mut self, tree: &UseTree, prefix: &[String], is_reexport: bool) {
        let below = |name: &dyn ToString| [prefix, &[name.to_string()]].concat();
        let (name, path) = match tree {
            UseTree::Path(path) => return self.import(&path.tree, &below(&path.ident), is_reexport),
            UseTree::Group(group) => {
                return group.items.iter().for_each(|item| self.import(item, prefix, is_reexport));
            }
            UseTree::Glob(_) => ("*".to_owned(), prefix.to_vec()),
            UseTree::Rename(rename) => (rename.rename.to_string(), below(&rename.ident)),
            UseTree::Name(name) if name.ident == "self" => {
                (prefix.last().cloned().unwrap_or_default(), prefix.to_vec())
            }
            UseTree::Name(name) => (name.ident.to_string(), below(&name.ident)),
        };
        self.imports.push(Import { name, path, is_reexport });
    }
}

fn parse(source: &str) -> TokenStream {
    source.parse().unwrap_or_else(|error| panic!("{error} in {source}"))
}

fn is_sign(tree: &TokenTree, sign: char) -> bool {
    matches!(tree, TokenTree::Punct(punct) if punct.as_char() == sign)
}

/// Whether this is `pub`, or what ends `pub(crate)`.
fn is_visibility(tree: &TokenTree) -> bool {
    match tree {
        TokenTree::Ident(ident) => ident == "pub",
        TokenTree::Group(group) => group.delimiter() == Delimiter::Parenthesis,
        TokenTree::Punct(_) | TokenTree::Literal(_) => false,
    }
}

/// The tokens without what follows `#[cfg(test)]`, which ends with a block or a semicolon.
fn without_tests(stream: TokenStream) -> TokenStream {
    let mut trees = stream.into_iter().peekable();
    let mut kept = Vec::new();
    while let Some(tree) = trees.next() {
        let is_mark = is_sign(&tree, '#') && trees.peek().is_some_and(|next| next.to_string() == "[cfg (test)]");
        if is_mark {
            let mut is_use = false;
            for tree in trees.by_ref() {
                is_use |= matches!(&tree, TokenTree::Ident(ident) if ident == "use");
                let is_block = matches!(&tree, TokenTree::Group(group) if group.delimiter() == Delimiter::Brace);
                if is_sign(&tree, ';') || (is_block && !is_use) {
                    break;
                }
            }
        } else if let TokenTree::Group(group) = tree {
            kept.push(proc_macro2::Group::new(group.delimiter(), without_tests(group.stream())).into());
        } else {
            kept.push(tree);
        }
    }
    kept.into_iter().collect()
}

/// The names of the functions of a source, each with its line.
pub fn functions(source: &str) -> Vec<(usize, String)> {
    let tokens = tokens(source);
    let names = tokens.windows(2).filter(|pair| &source[pair[0].0.clone()] == "fn");
    names.map(|pair| (line_of(source, pair[1].0.start), source[pair[1].0.clone()].to_owned())).collect()
}

/// The string literals and comments of a source.
pub fn texts(source: &str) -> Vec<Text> {
    let mut texts = Vec::new();
    let mut end = 0;
    for (range, literal) in tokens(source) {
        // A comment for documentation is several tokens at one place.
        if range.start < end {
            continue;
        }
        // Nothing but comments and white space is between two tokens.
        add_comments(&mut texts, source, end..range.start);
        if source[range.clone()].starts_with("//") || source[range.clone()].starts_with("/*") {
            add_comments(&mut texts, source, range.clone());
        } else if let Some(text) = literal.and_then(string) {
            texts.push(Text { line: line_of(source, range.start), is_comment: false, text });
        }
        end = range.end;
    }
    add_comments(&mut texts, source, end..source.len());
    texts
}

/// The tokens of a source with their places in it. Brackets are tokens, too.
fn tokens(source: &str) -> Vec<(Range<usize>, Option<Literal>)> {
    fn flatten(stream: TokenStream, found: &mut Vec<(Range<usize>, Option<Literal>)>) {
        for tree in stream {
            match tree {
                TokenTree::Group(group) => {
                    found.push((group.span_open().byte_range(), None));
                    flatten(group.stream(), found);
                    found.push((group.span_close().byte_range(), None));
                }
                TokenTree::Literal(literal) => found.push((literal.span().byte_range(), Some(literal))),
                tree => found.push((tree.span().byte_range(), None)),
            }
        }
    }
    let mut found = Vec::new();
    flatten(parse(source), &mut found);
    found
}

fn string(literal: Literal) -> Option<String> {
    match Lit::new(literal) {
        Lit::Str(text) => Some(text.value()),
        Lit::ByteStr(bytes) => Some(String::from_utf8_lossy(&bytes.value()).into_owned()),
        Lit::CStr(text) => Some(text.value().to_string_lossy().into_owned()),
        _ => None,
    }
}

fn add_comments(texts: &mut Vec<Text>, source: &str, range: Range<usize>) {
    let begin = line_of(source, range.start);
    for (index, comment) in source[range].lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let line = begin + index;
        let text = comment.trim().trim_start_matches(['/', '!', '*']).trim();
        let stands_alone = source.lines().nth(line - 1).is_some_and(|whole| whole.trim() == comment.trim());
        match texts.last_mut() {
            Some(last)
                if last.is_comment && stands_alone && last.line + last.text.matches('\n').count() + 1 == line =>
            {
                last.text.push('\n');
                last.text.push_str(text);
            }
            _ => texts.push(Text { line, is_comment: true, text: text.to_owned() }),
        }
    }
}

fn line_of(source: &str, at: usize) -> usize {
    source[..at].matches('\n').count() + 1
}
