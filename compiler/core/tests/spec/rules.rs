//! `docs/rules.md`: the table of rules, and what they make of the layers of shipped models.

use super::support::{repository, settle, spec};
use pipec_compiler::graph::graphs;
use pipec_compiler::mode::Extent;
use pipec_compiler::rewrite::{Rates, layer, rules};
use pipec_compiler::spec::Resolution;

const PAGE: &str = "docs/rules.md";

/// A model of each family of the library.
const MODELS: &[&str] = &[
    "llama2_7b",
    "llama3_8b",
    "gpt3_175b",
    "opt_6_7b",
    "mistral_7b",
    "qwen2_5_7b",
    "qwen3_8b",
    "gemma_7b",
    "phi2",
];

/// The text between two marks.
fn filled(page: &str, mark: &str, text: &str) -> String {
    let (open, close) = (format!("<!-- {mark} -->\n"), format!("<!-- /{mark} -->"));
    let start = page.find(&open).unwrap_or_else(|| panic!("{PAGE} has no `{mark}`")) + open.len();
    let end = start + page[start..].find(&close).unwrap_or_else(|| panic!("`{mark}` has no end"));
    format!("{}{text}{}", &page[..start], &page[end..])
}

fn table() -> String {
    let mut text = String::new();
    for rule in rules() {
        text += &format!("**{}**\n\n```text\n{}\n  = {}\n```\n\n", rule.name, rule.from, rule.to);
        if !rule.condition.is_empty() {
            text += &format!("Where {}.\n", rule.condition);
        }
        let (first, rest) = rule.reason.split_at(1);
        text += &format!("{}{rest}.\n\n", first.to_uppercase());
    }
    text
}

fn layers() -> String {
    let mut text =
        "| model | layer | terms | saturated | classes | rounds | modes | in two slices |\n".to_owned();
    text += "| --- | --- | --- | --- | --- | --- | --- | --- |\n";
    for model in MODELS {
        let Resolution { spec, .. } = spec(&format!(
            "train {{ seq: 2048, global_batch: 1, micro_batch: 1, precision: bf16, optimizer: adamw {{ lr: 1e-4 }} }}
            pipeline {{ model: std::models::{model}, cluster: std::clusters::dgx_h100 }}"
        ));
        for graph in graphs(&spec.model, spec.train.precision).values() {
            let of = |lengths: &[u64]| {
                let extents: Vec<Extent<'_>> = (0..lengths.len())
                    .map(|slice| Extent { sequences: 1, lengths, slice, reach: None })
                    .collect();
                layer(graph, &extents, Rates::of(&spec)).unwrap()
            };
            let ((whole, summary), (sliced, _)) = (of(&[2048]), of(&[1024, 1024]));
            text += &format!(
                "| {model} | {} | {} | {} | {} | {} | {} | {} |\n",
                graph.name,
                summary.terms_before,
                summary.terms,
                summary.classes,
                summary.rounds,
                whole.modes.len(),
                sliced.modes.len()
            );
        }
    }
    text
}

#[test]
fn the_page_of_rules_is_what_the_rules_are() {
    let page = std::fs::read_to_string(repository().join(PAGE)).unwrap();
    let expected = filled(&filled(&page, "rules", &table()), "layers", &layers());
    settle(PAGE, &page, &expected);
}
