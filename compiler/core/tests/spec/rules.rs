//! `docs/rules.md`: the table of rules, and what they make of the layers of shipped models.

use super::support::{filled, repository, settle, spec};
use pipec_compiler::graph::graphs;
use pipec_compiler::mode::Extent;
use pipec_compiler::rewrite::{Rates, Rule, layer, rules};
use pipec_compiler::spec::{Level, Resolution};
use std::collections::BTreeSet;

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
        "| model | layer | terms | saturated | classes | rounds | modes | in two slices | with `offload` |\n"
            .to_owned();
    text += "| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n";
    for model in MODELS {
        let Resolution { spec, .. } = spec(&format!(
            "train {{ seq: 2048, global_batch: 1, micro_batch: 1, precision: bf16, optimizer: adamw {{ lr: 1e-4 }} }}
            pipeline {{ model: std::models::{model}, cluster: std::clusters::dgx_h100 }}"
        ));
        for graph in graphs(&spec.model, spec.train.precision).values() {
            let of = |lengths: &[u64], host: bool| {
                let extents: Vec<Extent<'_>> = (0..lengths.len())
                    .map(|slice| Extent { sequences: 1, lengths, slice, reach: None })
                    .collect();
                layer(graph, &extents, Rates { host, ..Rates::of(&spec) }).unwrap()
            };
            let (whole, summary) = of(&[2048], false);
            let ((sliced, _), (offloaded, _)) = (of(&[1024, 1024], false), of(&[2048], true));
            text += &format!(
                "| {model} | {} | {} | {} | {} | {} | {} | {} | {} |\n",
                graph.name,
                summary.terms_before,
                summary.terms,
                summary.classes,
                summary.rounds,
                whole.modes.len(),
                sliced.modes.len(),
                offloaded.modes.len()
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

#[test]
fn every_rule_has_a_golden() {
    let folder = repository().join("compiler/core/src/rewrite/rules/snapshots");
    let name = |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
    let there: BTreeSet<String> =
        std::fs::read_dir(folder).unwrap().map(name).filter(|name| name.ends_with(".snap")).collect();
    let file = |rule: &Rule| format!("pipec_compiler__rewrite__rules__tests__{}.snap", rule.name);
    assert_eq!(there, rules().iter().map(file).collect());
}

/// The bytes per token that each option keeps of the layer of a model, in bf16.
fn kept(model: &str) -> [u64; 3] {
    const TOKENS: u64 = 2048;
    let Resolution { spec, .. } = spec(&format!(
        "train {{ seq: {TOKENS}, global_batch: 1, micro_batch: 1, precision: bf16, optimizer: adamw {{ lr: 1e-4 }} }}
        pipeline {{ model: std::models::{model}, cluster: std::clusters::dgx_h100 }}"
    ));
    let graphs = graphs(&spec.model, spec.train.precision);
    let graph = graphs.values().find(|graph| graph.name == "layer").unwrap();
    let extent = Extent { sequences: 1, lengths: &[TOKENS], slice: 0, reach: None };
    let (layer, _) = layer(graph, &[extent], Rates::of(&spec)).unwrap();
    Level::ALL.map(|level| {
        let bytes = layer.modes[layer.at(level)].kept.0;
        assert!(bytes.is_multiple_of(TOKENS));
        bytes / TOKENS
    })
}

/// Published bytes per token and layer for 2-byte activations.
///
/// Llama with flash attention keeps `16 h + 6 ffn` (inputs and results of the norms, q, k, v, the attention, gate, up and their
/// product), besides 4 bytes for every statistic. GPT keeps `34 h` (Korthikanti et al. 2022, without the scores of attention,
/// which are not stored); two of these are the masks of dropout, which the models of the library do not have and which would
/// be drawn again here. Full recomputation keeps the input of the layer.
#[test]
fn kept_bytes_are_the_published_ones() {
    for (model, h, ffn, heads) in [("llama2_7b", 4096, 11008, 32), ("llama2_13b", 5120, 13824, 40)] {
        let statistics = 4 * (1 + 1 + heads);
        let [none, selective, full] = kept(model);
        assert_eq!(none, 16 * h + 6 * ffn + statistics, "{model}");
        // The results of both norms, of the gate and the inverse roots follow from what is kept anyway.
        assert_eq!(selective, 12 * h + 4 * ffn + 4 * heads, "{model}");
        assert_eq!(full, 2 * h, "{model}");
    }
    for (model, h, heads) in [("gpt3_13b", 5120, 40), ("gpt3_175b", 12288, 96)] {
        let statistics = 4 * (2 + 2 + heads);
        let [none, selective, full] = kept(model);
        assert_eq!(none, 32 * h + statistics, "{model}");
        // As above, and the result of GELU.
        assert_eq!(selective, 20 * h + 4 * heads, "{model}");
        assert_eq!(full, 2 * h, "{model}");
    }
}
