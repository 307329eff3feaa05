//! Whether the arenas fit their devices, and what would.

use super::arena::Arena;
use super::sum;
use crate::spec::{Cluster, Origins, Spec, State};
use pipe_grammar::diagnostic::{Code, Diagnostic};
use pipec_program::id::{Id, IdVec};
use pipec_program::{Bytes, Category, DeviceId};

/// One error for the device that lacks most, if any does; or for the host that does.
pub(super) fn check(
    spec: &Spec,
    origins: &Origins,
    arenas: &IdVec<DeviceId, Arena>,
    hosts: &IdVec<DeviceId, Arena>,
) -> Option<Diagnostic> {
    device(spec, origins, arenas).or_else(|| host(&spec.cluster, origins, hosts))
}

/// A host that holds less than it is given.
fn host(cluster: &Cluster, origins: &Origins, hosts: &IdVec<DeviceId, Arena>) -> Option<Diagnostic> {
    let short = hosts.iter().filter(|(_, arena)| arena.end > arena.capacity);
    let (device, arena) =
        short.max_by_key(|(id, arena)| (arena.end - arena.capacity, std::cmp::Reverse(*id)))?;
    let (node, devices) = node(cluster, device);
    let message = format!(
        "the host of {device}, on node {node}, needs {} and has {} for each of {devices} devices: {} too little",
        arena.end,
        arena.capacity,
        arena.end - arena.capacity
    );
    let parts = arena.fixed.iter().map(|(category, bytes)| format!("{} {bytes}", category.name()));
    let offloaded = (arena.packed > Bytes::ZERO).then(|| format!("offloaded {}", arena.packed));
    let parts: Vec<String> = parts.chain(offloaded).collect();
    // Rounded up to what a file would say.
    let mebibytes = (arena.end.0 * u64::from(devices)).div_ceil(1 << 20);
    let help = if arena.fixed.is_empty() {
        format!("offload a smaller part, or use hosts with {mebibytes} MiB")
    } else {
        format!("hosts with {mebibytes} MiB would do; or use more nodes, each of which has less")
    };
    let origin = origins.cluster;
    let error = Diagnostic::error(origin.source, Code::OutOfMemory, message);
    Some(error.at(origin.span, parts.join(", ")).help(help))
}

/// The node of a device, and how many devices it has.
fn node(cluster: &Cluster, device: DeviceId) -> (usize, u32) {
    let mut before = 0;
    for (number, node) in cluster.nodes.iter().enumerate() {
        before += node.devices as usize;
        if device.index() < before {
            return (number, node.devices);
        }
    }
    (0, 1)
}

fn device(spec: &Spec, origins: &Origins, arenas: &IdVec<DeviceId, Arena>) -> Option<Diagnostic> {
    let short: Vec<_> = arenas.iter().filter(|(_, arena)| arena.end > arena.capacity).collect();
    let worst = short.iter().max_by_key(|(id, arena)| (arena.end - arena.capacity, std::cmp::Reverse(*id)));
    let &(device, arena) = worst?;
    let others = match short.len() - 1 {
        0 => String::new(),
        1 => ", and another device does not suffice either".to_owned(),
        count => format!(", and {count} other devices do not suffice either"),
    };
    let message = format!(
        "device {device} needs {} and has {}: {} too little{others}",
        arena.end,
        arena.capacity,
        arena.end - arena.capacity
    );
    let parts = arena.fixed.iter().chain(&arena.least).filter(|(_, bytes)| **bytes > Bytes::ZERO);
    let parts: Vec<String> = parts.map(|(category, bytes)| format!("{} {bytes}", category.name())).collect();
    let origin = origins.cluster;
    let error = Diagnostic::error(origin.source, Code::OutOfMemory, message)
        .at(origin.span, parts.join(", "))
        .help(way_out(spec, arenas));
    Some(error)
}

/// Activations, messages and workspace grow with the micro-batch; all else stays.
fn way_out(spec: &Spec, arenas: &IdVec<DeviceId, Arena>) -> String {
    let state = |arena: &Arena| {
        let fixed = arena.fixed.iter().filter(|(category, _)| match category {
            Category::Weights
            | Category::Loaded
            | Category::Gradients
            | Category::Optimizer
            | Category::Data => true,
            Category::Activations | Category::Communication | Category::Workspace => false,
        });
        sum(fixed.map(|(_, bytes)| bytes))
    };
    let sequences = spec.train.micro_batch;
    let fits = |micro_batch: u64| {
        arenas.values().all(|arena| {
            let moving = u128::from((arena.end - state(arena)).0) * u128::from(micro_batch)
                / u128::from(sequences.max(1));
            u128::from(state(arena).0) + moving <= u128::from(arena.capacity.0)
        })
    };
    let smaller =
        (1..sequences).rev().filter(|each| sequences.is_multiple_of(*each)).find(|&each| fits(each));
    let largest = arenas.values().map(state).max().unwrap_or_default();
    match smaller {
        Some(each) => format!("a micro-batch of {each} instead of {sequences} would fit"),
        None if arenas.values().any(|arena| state(arena) > arena.capacity) => {
            let host = match spec.pipeline.state {
                State::Device => ", or `state: host`",
                State::HostOptimizer => ", or `state: host` without `weights: device`",
                State::Host => "",
            };
            format!(
                "weights, gradients and optimizer alone take {largest}: use more stages, or devices with more memory{host}"
            )
        }
        None => {
            let pieces = spec.model.pieces.len();
            format!("use more stages (up to {pieces}), shorter sequences, or devices with more memory")
        }
    }
}
