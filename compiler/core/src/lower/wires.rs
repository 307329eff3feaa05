//! The links of a cluster and the routes of messages over them.
//!
//! A wire is two links, one for each direction. Between two devices of a node a message takes their direct wire if
//! there is one, else up to the host and down again; between nodes it goes through both hosts and the wire between the
//! nodes. A direct wire joins each two devices and a node wire each two nodes. Wires that the cluster does not state
//! are left out of the route.

use crate::spec::{Cluster, Node, Wire};
use pipec_program::id::IdVec;
use pipec_program::{Bytes, BytesPerSecond, Device, DeviceId, Link, LinkId};
use std::collections::BTreeMap;

/// Links, made as routes ask for them; those between devices and hosts exist from the start.
pub(super) struct Wires<'a> {
    cluster: &'a Cluster,
    /// The node of each device.
    nodes: IdVec<DeviceId, usize>,
    pub(super) links: IdVec<LinkId, Link>,
    known: BTreeMap<(End, End), LinkId>,
}

/// An end of a link.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    Device(DeviceId),
    Host(usize),
}

impl<'a> Wires<'a> {
    /// The first `devices` devices of the cluster, nodes in order.
    pub(super) fn new(cluster: &'a Cluster, devices: usize) -> (Self, IdVec<DeviceId, Device>) {
        let nodes =
            cluster.nodes.iter().enumerate().flat_map(|(node, kind)| (0..kind.devices).map(move |_| node));
        let nodes = nodes.take(devices).collect();
        let mut wires = Self { cluster, nodes, links: IdVec::new(), known: BTreeMap::new() };
        let devices = wires.nodes.ids().map(|id| wires.device(id)).collect::<Vec<_>>().into();
        (wires, devices)
    }

    fn node(&self, device: DeviceId) -> &'a Node {
        &self.cluster.nodes[self.nodes[device]]
    }

    fn device(&mut self, id: DeviceId) -> Device {
        let (node, host) = (self.node(id), End::Host(self.nodes[id]));
        let (kind, share) = (&node.device, u64::from(node.devices.max(1)));
        Device {
            name: kind.name.clone(),
            memory: kind.memory,
            host_memory: Bytes(node.host_memory.0 / share),
            bandwidth: kind.bandwidth,
            host_bandwidth: BytesPerSecond(node.host_bandwidth.0 / share),
            upload: self.link(host, End::Device(id), node.host_wire).into_iter().collect(),
            download: self.link(End::Device(id), host, node.host_wire).into_iter().collect(),
            rates: kind.rates.clone(),
            threads: kind.threads,
            host_threads: (u64::from(node.host_cores) / share).max(1) as u32,
        }
    }

    /// The links of a message from one device to another, in order.
    pub(super) fn route(&mut self, from: DeviceId, to: DeviceId) -> Vec<LinkId> {
        let (source, target) = (self.node(from), self.node(to));
        let (here, there) = (End::Host(self.nodes[from]), End::Host(self.nodes[to]));
        let (from, to) = (End::Device(from), End::Device(to));
        if here == there && source.device_wire.is_some() {
            return self.link(from, to, source.device_wire).into_iter().collect();
        }
        let up = self.link(from, here, source.host_wire);
        let across = if here == there { None } else { self.link(here, there, self.cluster.node_wire) };
        let down = self.link(there, to, target.host_wire);
        [up, across, down].into_iter().flatten().collect()
    }

    /// The links of a message from the host of one device to another device, in order.
    pub(super) fn load(&mut self, from: DeviceId, to: DeviceId) -> Vec<LinkId> {
        let (here, there) = (End::Host(self.nodes[from]), End::Host(self.nodes[to]));
        let across = if here == there { None } else { self.link(here, there, self.cluster.node_wire) };
        let down = self.link(there, End::Device(to), self.node(to).host_wire);
        [across, down].into_iter().flatten().collect()
    }

    /// The links of a ring through the members of a group.
    pub(super) fn ring(&mut self, members: &[DeviceId]) -> Vec<LinkId> {
        let next = members.iter().cycle().skip(1);
        members.iter().zip(next).flat_map(|(&from, &to)| self.route(from, to)).collect()
    }

    fn link(&mut self, from: End, to: End, wire: Option<Wire>) -> Option<LinkId> {
        let Wire { bandwidth, latency } = wire?;
        let name = |end| match end {
            End::Device(device) => device.to_string(),
            End::Host(node) => format!("host{node}"),
        };
        Some(*self.known.entry((from, to)).or_insert_with(|| {
            self.links.push(Link { name: format!("{}->{}", name(from), name(to)), bandwidth, latency })
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::DeviceKind;
    use pipec_program::Nanos;
    use pipec_program::id::Id;

    fn routes(
        device_wire: Option<Wire>,
        host_wire: Option<Wire>,
        node_wire: Option<Wire>,
    ) -> [Vec<String>; 2] {
        let node = Node {
            devices: 2,
            device: DeviceKind {
                name: "gpu".to_owned(),
                memory: Bytes(1),
                bandwidth: BytesPerSecond(1),
                rates: Vec::new(),
                threads: 1,
            },
            host_memory: Bytes(100),
            host_cores: 1,
            host_bandwidth: BytesPerSecond(4),
            host_wire,
            device_wire,
        };
        let cluster = Cluster { name: "two".to_owned(), nodes: vec![node.clone(), node], node_wire };
        let (mut wires, devices) = Wires::new(&cluster, 4);
        assert_eq!(devices[DeviceId::new(3)].host_memory, Bytes(50));
        [(0, 1), (1, 2)].map(|(from, to)| {
            let route = wires.route(DeviceId(from), DeviceId(to));
            assert_eq!(wires.route(DeviceId(from), DeviceId(to)), route);
            route.iter().map(|&link| wires.links[link].name.clone()).collect()
        })
    }

    #[test]
    fn messages_take_the_shortest_stated_way() {
        let wire = Some(Wire { bandwidth: BytesPerSecond(1), latency: Nanos(1) });
        let [near, far] = routes(wire, wire, wire);
        assert_eq!(near, ["d0->d1"]);
        assert_eq!(far, ["d1->host0", "host0->host1", "host1->d2"]);
        let [near, far] = routes(None, wire, None);
        assert_eq!(near, ["d0->host0", "host0->d1"]);
        assert_eq!(far, ["d1->host0", "host1->d2"]);
        let [near, far] = routes(None, None, wire);
        assert!(near.is_empty());
        assert_eq!(far, ["host0->host1"]);
    }
}
