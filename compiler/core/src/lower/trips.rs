//! What goes to the host and comes back: when values are stored, and when they are fetched.
//!
//! Times are those of the reference execution, with one copy at a time in each direction. A unit is stored as soon as its
//! forward pass ends and fetched as late as its backward pass allows, so that it is on the device for as few passes as can be.
//! A unit whose backward pass comes before it could be back stays where it is: then what is stored is what is fetched, and
//! nothing is copied.

use super::functions::Region;
use super::lifetimes::{Held, Lifetimes, Tensor};
use super::pack::Span;
use super::wires::Wires;
use crate::plan::Plan;
use crate::schedule::Execution;
use crate::spec::Cluster;
use pipec_program::id::IdVec;
use pipec_program::{Bytes, BytesPerSecond, Device, DeviceId, Link, LinkId, Nanos};

/// A way to the host and back. Positions count the passes of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Trip {
    /// The unit, by its index in the plan.
    unit: usize,
    /// What the forward pass makes.
    pub(super) stored: Held,
    /// Its place on the host, among the tensors there.
    pub(super) host: Held,
    /// What the backward pass takes.
    pub(super) fetched: Held,
    /// How many passes are over when it is fetched.
    pub(super) fetch: u32,
    /// The pass that takes it first.
    pub(super) taken: u32,
}

/// What is stored on a device before it is known whether it travels.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stored {
    /// The unit, by its index in the plan.
    pub(super) unit: usize,
    pub(super) held: Held,
    pub(super) bytes: u64,
    pub(super) forward: u32,
    /// The first pass that takes it, and the last.
    pub(super) backward: (u32, u32),
}

/// The way between a device and its host, in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Way {
    bandwidth: BytesPerSecond,
    latency: Nanos,
}

/// What a device has of its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Host {
    /// From the device.
    pub(crate) down: Way,
    /// To the device.
    pub(crate) up: Way,
    /// The memory that it has there for itself, and its rate.
    pub(crate) memory: Bytes,
    pub(crate) bandwidth: BytesPerSecond,
}

impl Host {
    pub(super) fn new(device: &Device, links: &IdVec<LinkId, Link>) -> Self {
        Self {
            down: Way::new(&device.download, links, device),
            up: Way::new(&device.upload, links, device),
            memory: device.host_memory,
            bandwidth: device.host_bandwidth,
        }
    }
}

/// What the first `devices` devices of a cluster have of their hosts.
pub(crate) fn hosts(cluster: &Cluster, devices: usize) -> IdVec<DeviceId, Host> {
    let (wires, devices) = Wires::new(cluster, devices);
    devices.values().map(|device| Host::new(device, &wires.links)).collect()
}

impl Way {
    /// Over some links; copies within one memory read and write it.
    fn new(route: &[LinkId], links: &IdVec<LinkId, Link>, device: &Device) -> Self {
        let links = || route.iter().map(|&link| &links[link]);
        let bandwidth = links().map(|link| link.bandwidth).min();
        Self {
            bandwidth: bandwidth.unwrap_or(BytesPerSecond(device.bandwidth.0 / 2)),
            latency: links().map(|link| link.latency).sum(),
        }
    }

    /// The bytes that copies move in so many nanoseconds.
    pub(crate) fn carries(self, nanos: u64) -> u64 {
        let bytes = u128::from(self.bandwidth.0) * u128::from(nanos) / 1_000_000_000;
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }

    /// The time of a copy, in nanoseconds.
    pub(crate) fn time(self, bytes: u64) -> u64 {
        let moving = u128::from(bytes) * 1_000_000_000 / u128::from(self.bandwidth.0.max(1));
        u64::try_from(moving).unwrap_or(u64::MAX).saturating_add(self.latency.0)
    }
}

impl Lifetimes {
    /// Sends to the host what can be back in time.
    pub(super) fn travel(
        &mut self,
        plan: &Plan,
        execution: &Execution,
        stored: &IdVec<DeviceId, Vec<Stored>>,
        devices: &IdVec<DeviceId, Device>,
        links: &IdVec<LinkId, Link>,
    ) {
        for device in plan.devices.ids() {
            let passes = &execution.devices[device];
            let Host { down, up, .. } = Host::new(&devices[device], links);
            // Those that are there long enough, each with the end of its store.
            let mut travels: Vec<(Stored, u64)> = Vec::new();
            let mut free = 0;
            for of in &stored[device] {
                let end = passes[of.forward as usize].1.max(free).saturating_add(down.time(of.bytes));
                let back = end.saturating_add(up.time(of.bytes));
                let left = passes.partition_point(|pass| pass.0 < end) as u32;
                if back <= passes[of.backward.0 as usize].0 && left < of.backward.0 {
                    travels.push((*of, end));
                    free = end;
                }
            }
            travels.sort_by_key(|(of, _)| of.backward.0);
            let mut next = u64::MAX;
            let mut trips: Vec<Trip> = Vec::new();
            for &(of, end) in travels.iter().rev() {
                let finish = passes[of.backward.0 as usize].0.min(next);
                let start = finish.saturating_sub(up.time(of.bytes)).max(end);
                next = start;
                let tensor = self.tensors[device][of.held as usize];
                let left = passes.partition_point(|pass| pass.0 < end) as u32;
                let over = passes.partition_point(|pass| pass.1 <= start) as u32;
                let fetch = over.clamp(of.forward + 1, of.backward.0);
                let host = self.hosts[device].len() as Held;
                let (unit, bytes) = (of.unit, of.bytes);
                let span = Span { bytes, start: of.forward, end: of.backward.0 };
                self.hosts[device].push(Tensor { span, last: span.end, sent: true, ..tensor });
                let fetched = self.tensors[device].len() as Held;
                let span = Span { bytes, start: fetch, end: of.backward.1 };
                let region = Region::Fetched;
                self.tensors[device].push(Tensor { region, span, last: span.end, ..tensor });
                let stays = &mut self.tensors[device][of.held as usize];
                (stays.span.end, stays.sent) = (left.max(of.forward), true);
                self.units[of.unit].fetched = Some(fetched);
                trips.push(Trip { unit, stored: of.held, host, fetched, fetch, taken: of.backward.0 });
            }
            trips.sort_by_key(|trip| (trip.fetch, trip.taken));
            for (number, trip) in (0..).zip(&trips) {
                self.units[trip.unit].trip = Some(number);
            }
            self.trips[device] = trips;
        }
    }
}
