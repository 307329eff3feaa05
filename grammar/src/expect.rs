//! What to say where the grammar could not go on.
//!
//! Pest gives a place and the rules it tried there. Here they become a sentence: what was expected, in
//! plain words, what was found instead, at the smallest span, and, where the mistake is a known one,
//! what to write.

use crate::ast::Span;
use crate::diagnostic::{Code, Diagnostic, SourceId};
use crate::parse::Rule;
use crate::recover::Block;
use crate::scan::{Bracket, Kind, Token, shortened};

/// Where the failure is.
pub(crate) struct Context<'a> {
    pub(crate) source: SourceId,
    pub(crate) text: &'a str,
    pub(crate) tokens: &'a [Token],
    /// Indices of the tokens that the grammar saw.
    pub(crate) alive: &'a [usize],
    /// Position in `alive` of the token that it could not take.
    pub(crate) found: usize,
    /// The block around it.
    pub(crate) block: Option<Block>,
}

/// A diagnostic, and the index of the token whose item is wrong.
pub(crate) struct Told {
    pub(crate) diagnostic: Diagnostic,
    pub(crate) blame: Option<usize>,
}

impl Context<'_> {
    /// The token so many places after the one that was found; negative is before it.
    fn token(&self, offset: isize) -> Option<(usize, &Token)> {
        let index = *self.alive.get(self.found.checked_add_signed(offset)?)?;
        Some((index, self.tokens.get(index)?))
    }

    fn kind(&self, offset: isize) -> Option<Kind> {
        self.token(offset).map(|(_, token)| token.kind)
    }

    fn written(&self, offset: isize) -> &str {
        self.token(offset).map_or("", |(_, token)| &self.text[token.span.range()])
    }
}

/// Says what was expected, given the rules that were tried.
pub(crate) fn expect(context: &Context<'_>, rules: &[Rule]) -> Told {
    if let Some(told) = missing_value(context).or_else(|| torn_unit(context, rules)) {
        return told;
    }
    let expected = listed(&phrases(context, rules));
    let before = context.token(-1);
    let found = context.token(0);
    let starts_item = [Rule::bound, Rule::key, Rule::kind].iter().any(|rule| rules.contains(rule))
        && !rules.contains(&Rule::close_paren);
    // What is missing at the end of a line is told of there, not at the next line.
    let gap = before.filter(|_| found.is_none_or(|(_, token)| token.first) && !starts_item);
    let (span, what, blame) = match (gap, found) {
        (Some((index, token)), Some(_)) => {
            (Span::new(token.span.end, token.span.end), "the end of the line".to_owned(), Some(index))
        }
        (_, Some((index, token))) => {
            let what = format!("`{}`", shortened(&context.text[token.span.range()]));
            let begins = starts_item && !matches!(token.kind, Kind::Close(_));
            (
                token.span,
                what,
                if begins { Some(index) } else { before.map_or(Some(index), |(last, _)| Some(last)) },
            )
        }
        (_, None) => {
            let (index, end) = before.map_or((None, 0), |(index, token)| (Some(index), token.span.end));
            let last = index.is_none_or(|index| index + 1 >= context.tokens.len());
            let what = match context.block {
                _ if last => "the end of the file",
                Some(_) => "the next declaration",
                None => "the end of the line",
            };
            (Span::new(end, end), what.to_owned(), index)
        }
    };
    let message = format!("expected {expected}, found {what}");
    let mut diagnostic = Diagnostic::error(context.source, Code::Expected, message);
    diagnostic = match gap.and(before) {
        Some(_) => diagnostic.at(span, format!("expected {expected}")),
        None => diagnostic.at(span, "unexpected"),
    };
    if let Some(help) = known_mistake(context, rules) {
        diagnostic = diagnostic.help(help);
    }
    Told { diagnostic, blame }
}

/// `x =` and on the next line `y = 3`: the grammar took `y` for the value of `x` and failed at `=`.
fn missing_value(context: &Context<'_>) -> Option<Told> {
    let taken = context.token(-1)?.1;
    let (index, before) = context.token(-2)?;
    let wants = match before.kind {
        Kind::Assign | Kind::Colon | Kind::Operator => true,
        Kind::Word
        | Kind::Number
        | Kind::Text
        | Kind::Open(_)
        | Kind::Close(_)
        | Kind::Comma
        | Kind::DoubleColon
        | Kind::Foreign => false,
    };
    let names = match context.kind(0)? {
        Kind::Assign | Kind::Colon => true,
        Kind::Word | Kind::Number => context.written(-1) == "repeat",
        Kind::Text
        | Kind::Open(_)
        | Kind::Close(_)
        | Kind::Comma
        | Kind::DoubleColon
        | Kind::Operator
        | Kind::Foreign => false,
    };
    let names = names && taken.kind == Kind::Word && taken.first;
    if !wants || !names {
        return None;
    }
    let end = before.span.end;
    let message =
        format!("expected a value after `{}`, found the end of the line", &context.text[before.span.range()]);
    let diagnostic = Diagnostic::error(context.source, Code::Expected, message)
        .at(Span::new(end, end), "expected a value");
    Some(Told { diagnostic, blame: Some(index) })
}

/// `24 Gi B`: the grammar took `B` for the next key.
fn torn_unit(context: &Context<'_>, rules: &[Rule]) -> Option<Told> {
    let (index, last) = context.token(-1)?;
    let (_, unit) = context.token(-2)?;
    let number_before = match unit.kind {
        Kind::Number => context.text[unit.span.range()].ends_with(|c: char| c.is_ascii_alphabetic()),
        Kind::Word => context.kind(-3) == Some(Kind::Number) && !unit.first,
        Kind::Text
        | Kind::Open(_)
        | Kind::Close(_)
        | Kind::Comma
        | Kind::Colon
        | Kind::DoubleColon
        | Kind::Assign
        | Kind::Operator
        | Kind::Foreign => false,
    };
    if !rules.contains(&Rule::colon) || last.kind != Kind::Word || last.first || !number_before {
        return None;
    }
    let span = Span::new(unit.span.start, last.span.end);
    let message = format!("`{}` is not a unit", &context.text[span.range()]);
    let diagnostic = Diagnostic::error(context.source, Code::BrokenUnit, message)
        .at(span, "two words")
        .help("a unit is one word, such as `GiB`, `TFLOPS` or `GB/s`");
    Some(Told { diagnostic, blame: Some(index) })
}

/// What a user knows a rule by, in the order in which it is read. Rules that only continue what is
/// already complete are left out.
fn phrases(context: &Context<'_>, rules: &[Rule]) -> Vec<&'static str> {
    let has = |rule: Rule| rules.contains(&rule);
    let any = |some: &[Rule]| some.iter().any(|rule| rules.contains(rule));
    let new_line = context.token(0).is_some_and(|(_, token)| token.first);
    let entry = has(Rule::key) || has(Rule::kind);
    // Between the entries of a block, on one line, a new key cannot stand.
    let separator = has(Rule::comma) && entry && !new_line;
    let table: &[(bool, &'static str)] = &[
        (any(&DECLARATION_RULES), "a declaration"),
        (any(&[Rule::name, Rule::parameter, Rule::used, Rule::path]) && !any(&VALUE_RULES), "a name"),
        (has(Rule::text) && has(Rule::used), "a text"),
        (has(Rule::all), "`*`"),
        (has(Rule::bound), "a statement"),
        (any(&VALUE_RULES), "a value"),
        (any(&[Rule::count, Rule::count_operand, Rule::number]), "a number"),
        (has(Rule::assign), "`=`"),
        (has(Rule::colon) && !has(Rule::close_paren), "`:`"),
        (has(Rule::two_way), "`<->`"),
        (has(Rule::times), "`*`"),
        (has(Rule::kw_as), "`as`"),
        (has(Rule::comma) && (separator || !entry), "`,`"),
        (separator, "a new line"),
        (entry && !separator && has(Rule::kind) && has(Rule::key), "a setting, part or link"),
        (entry && !separator && !has(Rule::key), "a kind of part"),
        (entry && !separator && !has(Rule::kind) && !has(Rule::close_paren), "a key"),
        (has(Rule::open_paren), "`(`"),
        (any(&[Rule::open_brace, Rule::statements, Rule::items, Rule::settings]), "`{`"),
        (has(Rule::close_paren), "`)`"),
        (has(Rule::close_square), "`]`"),
        (has(Rule::close_brace), "`}`"),
    ];
    let phrases: Vec<&'static str> =
        table.iter().filter(|(tried, _)| *tried).map(|(_, phrase)| *phrase).collect();
    match (phrases.is_empty(), context.block) {
        (false, _) => phrases,
        (true, Some(Block::Statements)) => vec!["a statement"],
        (true, Some(Block::Items)) => vec!["a setting, part or link"],
        (true, Some(Block::Settings)) => vec!["a setting"],
        (true, None) => vec!["a declaration"],
    }
}

const DECLARATION_RULES: [Rule; 11] = [
    Rule::use_,
    Rule::model,
    Rule::cluster,
    Rule::train,
    Rule::pipeline,
    Rule::kw_use,
    Rule::kw_model,
    Rule::kw_cluster,
    Rule::kw_train,
    Rule::kw_pipeline,
    Rule::EOI,
];

const VALUE_RULES: [Rule; 7] =
    [Rule::expr, Rule::operand, Rule::quantity, Rule::list, Rule::group, Rule::reference, Rule::argument];

/// `a`, `a or b`, `a, b or c`
fn listed(phrases: &[&str]) -> String {
    match phrases {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}

/// Help for mistakes that users of other languages make.
fn known_mistake(context: &Context<'_>, rules: &[Rule]) -> Option<String> {
    let has = |rule: Rule| rules.contains(&rule);
    let found = context.written(0);
    let before = context.written(-1);
    match (before, found) {
        ("if" | "else" | "match" | "switch", _) | (_, "if" | "else" | "match" | "switch") => {
            return Some(
                "there are no conditions; write another model, or give the op an argument".to_owned(),
            );
        }
        ("for" | "while" | "loop", _) | (_, "for" | "while" | "loop") => {
            return Some("repetition is written `repeat N as name { ... }`".to_owned());
        }
        ("let" | "const" | "var" | "val", _) => {
            return Some(format!("a statement is `name = value`, without `{before}`"));
        }
        _ => {}
    }
    match context.kind(0) {
        Some(Kind::Assign) if has(Rule::colon) => {
            Some(format!("settings and arguments are written with a colon: `{before}: ...`"))
        }
        Some(Kind::Assign)
            if context.block == Some(Block::Settings) || context.block == Some(Block::Items) =>
        {
            Some("settings are written `key: value`".to_owned())
        }
        Some(Kind::Colon) if has(Rule::assign) && context.block == Some(Block::Statements) => {
            Some(format!("a model binds names with `=`: `{before} = ...`"))
        }
        Some(Kind::Open(Bracket::Paren)) if has(Rule::assign) && context.block == Some(Block::Statements) => {
            Some(format!("every value gets a name: `y = {before}(...)`"))
        }
        Some(Kind::Text) if has(Rule::key) && !has(Rule::close_paren) => {
            Some("keys are written without quotes".to_owned())
        }
        Some(Kind::Text) if has(Rule::name) => Some("names are written without quotes".to_owned()),
        Some(Kind::Operator)
            if found == "-" && context.kind(-1) == Some(Kind::Word) && !has(Rule::operator) =>
        {
            Some("a name has letters, digits and `_`, but no `-`".to_owned())
        }
        Some(Kind::Word | Kind::Number | Kind::Text)
            if has(Rule::colon) && has(Rule::close_paren) && context.kind(-1) == Some(Kind::Word) =>
        {
            Some(format!(
                "write `{before}, {found}`, or `{before}: {found}` if `{before}` names the argument"
            ))
        }
        Some(Kind::Number) if has(Rule::times) && context.kind(1) != Some(Kind::Open(Bracket::Brace)) => {
            Some(format!("a setting is written `{before}: {found}`"))
        }
        Some(Kind::Word | Kind::Number) if has(Rule::times) => {
            Some(format!("so many of a kind are written `{before} * 8 {{ ... }}`"))
        }
        Some(Kind::Open(Bracket::Brace))
            if has(Rule::kind)
                && context.kind(-1) == Some(Kind::Number)
                && context.kind(-2) == Some(Kind::Colon) =>
        {
            Some(format!("so many of a kind are written `{} * {before} {{ ... }}`", context.written(-3)))
        }
        Some(Kind::Open(Bracket::Brace))
            if context.kind(-1) == Some(Kind::Assign) && context.block.is_none() =>
        {
            Some(
                "a body is written without `=`; `= NAME { ... }` sets the parameters of another declaration"
                    .to_owned(),
            )
        }
        Some(Kind::Open(Bracket::Brace)) if context.block == Some(Block::Settings) && has(Rule::colon) => {
            Some(format!("a setting is `{before}: name {{ ... }}`"))
        }
        _ if has(Rule::two_way) => Some("a link is written `link gpu <-> host { ... }`".to_owned()),
        _ if has(Rule::open_brace) && context.block.is_none() => {
            Some("the body of a declaration stands in `{ ... }`".to_owned())
        }
        _ => None,
    }
}
