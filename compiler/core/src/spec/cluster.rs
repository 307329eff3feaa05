//! A cluster: nodes of equal devices with a host each, and the wires between them.

use super::constant::{Constant, Environment, Settings, evaluate, settings};
use super::number::Dimension;
use super::report::Report;
use super::settings::{Block, Specialised};
use super::{Cluster, DeviceKind, Node, Origin, Wire};
use pipe_grammar::ast::{self, ClusterItem, Expr, Name};
use pipe_grammar::diagnostic::{Code, Diagnostic, SourceId, suggest};
use pipec_program::{Bytes, BytesPerSecond, DType, FlopsPerSecond, Nanos};

/// The rate of host memory where a cluster does not say: eight channels of DDR4 at 3200 MT/s, 25.6 GB/s each.
const HOST_BANDWIDTH: BytesPerSecond = BytesPerSecond(204_800_000_000);

/// The most nodes of a cluster and the most devices of a node; the largest machines have tens of thousands.
const MAX_PARTS: u64 = 1 << 16;

/// Element types that devices compute in, by the key of their rate.
const RATES: &[(&str, DType)] =
    &[("f32", DType::F32), ("f64", DType::F64), ("f16", DType::F16), ("bf16", DType::BF16)];

/// Resolves a cluster that is written out; `site` is what asks for it.
pub(super) fn cluster(
    name: &str,
    declaration: &Specialised<'_, ClusterItem>,
    site: Origin,
    report: &mut Report,
) -> Option<Cluster> {
    let mut reader = Reader { source: declaration.source, environment: &declaration.environment, report };
    let errors = reader.report.errors();
    let mut nodes = Vec::new();
    let mut node_wire = None;
    for item in declaration.items {
        match item {
            ClusterItem::Part(part) if part.name.text == "node" => {
                let (node, count) = (reader.node(part), reader.parts(part.count.as_ref()));
                if let (Some(node), Some(count)) = (node, count) {
                    nodes.extend(std::iter::repeat_n(node, usize::try_from(count).unwrap_or(0)));
                }
            }
            ClusterItem::Part(part) => {
                let near = suggest(&part.name.text, ["node"]);
                reader.error(
                    Code::Misplaced,
                    format!("`{}` outside of a node", part.name),
                    part.name.span,
                    near.map_or("put it into `node { .. }`", |_| "did you mean `node`?"),
                );
            }
            ClusterItem::Link(link) => {
                if reader.ends(link, ["node", "node"]) {
                    reader.once(node_wire.is_some(), &link.from, "link node <-> node");
                    node_wire = reader.wire(link);
                } else {
                    reader.error(
                        Code::Misplaced,
                        format!("a link {} <-> {} outside of a node", link.from, link.to),
                        link.from.span.to(link.to.span),
                        "between nodes it is `link node <-> node { .. }`; others stand inside a node",
                    );
                }
            }
            ClusterItem::Setting(setting) => reader.no_settings("a cluster", &setting.key),
        }
    }
    if reader.report.errors() > errors {
        return None;
    }
    let written = declaration.items.iter().any(|item| matches!(item, ClusterItem::Part(_)));
    let problem = match nodes.as_slice() {
        // Something is wrong with it that has been reported where it was written.
        [] if written => return None,
        [] => Some(("has no node", "add `node { gpu * 8 { .. }, host { .. } }`")),
        [_, _, ..] if node_wire.is_none() => {
            Some(("has several nodes and nothing that connects them", "add `link node <-> node { .. }`"))
        }
        [..] => None,
    };
    if let Some((what, help)) = problem {
        report.push(
            Diagnostic::error(site.source, Code::MissingKey, format!("cluster `{name}` {what}"))
                .at(site.span, "")
                .help(help),
        );
        return None;
    }
    Some(Cluster { name: name.to_owned(), nodes, node_wire })
}

struct Reader<'a> {
    source: SourceId,
    environment: &'a Environment,
    report: &'a mut Report,
}

impl Reader<'_> {
    fn error(&mut self, code: Code, message: String, span: ast::Span, help: &str) {
        self.report.push(Diagnostic::error(self.source, code, message).at(span, "").help(help));
    }

    fn constant(&mut self, expr: &Expr) -> Constant {
        evaluate(expr, self.source, self.environment, self.report)
    }

    fn parts(&mut self, count: Option<&Expr>) -> Option<u64> {
        let Some(expr) = count else { return Some(1) };
        let count = self.constant(expr).as_count(1, self.environment, self.report)?;
        if count > MAX_PARTS {
            self.error(
                Code::OutOfRange,
                format!("{count} parts are too many"),
                expr.span,
                &format!("at most {MAX_PARTS}"),
            );
            return None;
        }
        Some(count)
    }

    /// Reports a part or link that stands there already.
    fn once(&mut self, there: bool, name: &Name, what: &str) {
        if there {
            self.error(
                Code::DuplicateKey,
                format!("`{what}` is written twice"),
                name.span,
                "keep one of them",
            );
        }
    }

    fn no_settings(&mut self, what: &str, key: &Name) {
        self.error(
            Code::UnknownKey,
            format!("{what} has no key `{key}`"),
            key.span,
            "write it inside a part, such as `gpu { memory: 24 GiB }`",
        );
    }

    fn ends(&self, link: &ast::Link, names: [&str; 2]) -> bool {
        let ends = [link.from.text.as_str(), link.to.text.as_str()];
        ends == names || ends == [names[1], names[0]]
    }

    fn wire(&mut self, link: &ast::Link) -> Option<Wire> {
        let values = settings(&link.settings, self.source, self.environment, self.report);
        let keys = ["bandwidth", "latency"];
        let block = Block::new("a link", &values, &keys, &[], self.report);
        let bandwidth = block.require("bandwidth", "24 GB/s", self.report);
        let bandwidth = bandwidth.and_then(|value| positive(value, Dimension::Rate, self.report));
        let latency = block.require("latency", "5 us", self.report);
        let latency = latency.and_then(|value| value.as_quantity(Dimension::Time, self.report));
        Some(Wire { bandwidth: BytesPerSecond(bandwidth?), latency: Nanos(latency?) })
    }

    /// The settings of a part, which has no parts of its own.
    fn leaf(&mut self, part: &ast::Part) -> Settings {
        let mut own = ast::Settings { span: part.span, entries: Vec::new() };
        for item in &part.items {
            let (span, what) = match item {
                ClusterItem::Setting(setting) => {
                    own.entries.push(setting.clone());
                    continue;
                }
                ClusterItem::Part(inner) => (inner.name.span, "a part"),
                ClusterItem::Link(link) => (link.span, "a link"),
            };
            self.error(
                Code::Misplaced,
                format!("{what} inside `{}`", part.name),
                span,
                "it belongs into the node",
            );
        }
        let mut values = settings(&own, self.source, self.environment, self.report);
        values.origin.span = part.name.span;
        values
    }

    fn node(&mut self, part: &ast::Part) -> Option<Node> {
        let errors = self.report.errors();
        let (mut hosts, mut kinds, mut links) = (Vec::new(), Vec::new(), Vec::new());
        for item in &part.items {
            match item {
                ClusterItem::Part(inner) if inner.name.text == "host" => hosts.push(inner),
                ClusterItem::Part(inner) if inner.name.text == "node" => {
                    self.error(
                        Code::Misplaced,
                        "a node inside a node".to_owned(),
                        inner.name.span,
                        "nodes stand side by side in a cluster",
                    );
                }
                ClusterItem::Part(inner) => kinds.push(inner),
                ClusterItem::Link(link) => links.push(link),
                ClusterItem::Setting(setting) => self.no_settings("a node", &setting.key),
            }
        }
        for second in hosts.iter().skip(1) {
            self.once(true, &second.name, "host");
        }
        if let [first, second, ..] = kinds.as_slice() {
            let what = "a node with two kinds of device is not available";
            let error = Diagnostic::error(self.source, Code::Unsupported, what)
                .at(second.name.span, "the second kind")
                .with(first.name.span, "the first kind")
                .help("put the second kind into a node of its own");
            self.report.push(error);
        }
        let missing = [
            (kinds.is_empty(), "no device", "add `gpu * 8 { memory: .., bandwidth: .., bf16: .. }`"),
            (hosts.is_empty(), "no host", "add `host { memory: 512 GiB, cores: 64 }`"),
        ];
        for (absent, what, help) in missing {
            if absent {
                self.error(Code::MissingKey, format!("a node with {what}"), part.name.span, help);
            }
        }
        let host = hosts.first().and_then(|host| self.host(host));
        let kind_part = kinds.first()?;
        let device = self.device(kind_part);
        let count = self.parts(kind_part.count.as_ref());
        let kind = kind_part.name.text.as_str();
        let (mut host_wire, mut device_wire) = (None, None);
        for link in links {
            if self.ends(link, [kind, "host"]) {
                self.once(host_wire.is_some(), &link.from, &format!("link {kind} <-> host"));
                host_wire = self.wire(link);
            } else if self.ends(link, [kind, kind]) {
                self.once(device_wire.is_some(), &link.from, &format!("link {kind} <-> {kind}"));
                device_wire = self.wire(link);
            } else {
                let unknown = [&link.from, &link.to]
                    .into_iter()
                    .find(|end| ![kind, "host"].contains(&end.text.as_str()));
                let (what, span) = match unknown {
                    Some(end) => (format!("the node has no part `{end}`"), end.span),
                    None => ("a link from the host to itself".to_owned(), link.from.span.to(link.to.span)),
                };
                self.error(
                    Code::UnknownName,
                    what,
                    span,
                    &format!("links of this node are `{kind} <-> host` and `{kind} <-> {kind}`"),
                );
            }
        }
        let (device, count, (host_memory, host_cores, host_bandwidth)) = (device?, count?, host?);
        if self.report.errors() == errors && count > 1 && host_wire.is_none() && device_wire.is_none() {
            self.error(
                Code::MissingKey,
                format!("nothing connects the {count} devices of this node"),
                part.name.span,
                &format!("add `link {kind} <-> host {{ .. }}` or `link {kind} <-> {kind} {{ .. }}`"),
            );
        }
        let devices = u32::try_from(count).ok()?;
        let clean = self.report.errors() == errors;
        clean.then_some(Node {
            devices,
            device,
            host_memory,
            host_cores,
            host_bandwidth,
            host_wire,
            device_wire,
        })
    }

    fn host(&mut self, part: &ast::Part) -> Option<(Bytes, u32, BytesPerSecond)> {
        if let Some(count) = &part.count {
            self.error(Code::Conflict, "a node has one host".to_owned(), count.span, "leave the number out");
        }
        let values = self.leaf(part);
        let block = Block::new("a host", &values, &["memory", "cores", "bandwidth"], &[], self.report);
        let memory = block.require("memory", "512 GiB", self.report);
        let memory = memory.and_then(|value| positive(value, Dimension::Memory, self.report));
        let cores = match block.get("cores") {
            Some(value) => small_count(value, self.environment, self.report),
            None => Some(1),
        };
        let bandwidth = match block.get("bandwidth") {
            Some(value) => positive(value, Dimension::Rate, self.report),
            None => Some(HOST_BANDWIDTH.0),
        };
        Some((Bytes(memory?), cores?, BytesPerSecond(bandwidth?)))
    }

    fn device(&mut self, part: &ast::Part) -> Option<DeviceKind> {
        let values = self.leaf(part);
        let rates = RATES.iter().map(|(key, _)| *key);
        let keys: Vec<&str> = ["memory", "bandwidth", "threads"].into_iter().chain(rates).collect();
        let unavailable = ["fp8", "f8", "int8", "fp4", "tf32"];
        let block = Block::new("a device", &values, &keys, &unavailable, self.report);
        let memory = block.require("memory", "24 GiB", self.report);
        let memory = memory.and_then(|value| positive(value, Dimension::Memory, self.report));
        let bandwidth = block.require("bandwidth", "1008 GB/s", self.report);
        let bandwidth = bandwidth.and_then(|value| positive(value, Dimension::Rate, self.report));
        let threads = match block.get("threads") {
            Some(value) => small_count(value, self.environment, self.report),
            None => Some(1),
        };
        let mut rates = Vec::new();
        for (key, dtype) in RATES {
            if let Some(value) = block.get(key)
                && let Some(rate) = positive(value, Dimension::Speed, self.report)
            {
                rates.push((*dtype, FlopsPerSecond(rate)));
            }
        }
        rates.sort();
        if RATES.iter().all(|(key, _)| block.get(key).is_none()) {
            self.error(
                Code::MissingKey,
                format!("`{}` says not how fast it computes", part.name),
                part.name.span,
                "add a rate for each element type it has, such as `bf16: 165 TFLOPS` (dense, not sparse)",
            );
        }
        Some(DeviceKind {
            name: part.name.text.clone(),
            memory: Bytes(memory?),
            bandwidth: BytesPerSecond(bandwidth?),
            rates,
            threads: threads?,
        })
    }
}

/// A quantity that is not zero.
fn positive(value: &Constant, dimension: Dimension, report: &mut Report) -> Option<u64> {
    let amount = value.as_quantity(dimension, report)?;
    if amount == 0 {
        report.push(
            Diagnostic::error(value.origin.source, Code::OutOfRange, "a quantity of nothing")
                .at(value.origin.span, "must be above 0"),
        );
        return None;
    }
    Some(amount)
}

fn small_count(value: &Constant, environment: &Environment, report: &mut Report) -> Option<u32> {
    let count = value.as_count(1, environment, report)?;
    let small = u32::try_from(count).ok().filter(|count| *count <= 4096);
    if small.is_none() {
        report.push(
            Diagnostic::error(value.origin.source, Code::OutOfRange, format!("{count} is too large"))
                .at(value.origin.span, "at most 4096"),
        );
    }
    small
}
