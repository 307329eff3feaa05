//! The table of times that the simulator reads.

use super::{Cost, Profile, ProfileError, function};
use crate::function::{Body, Function};
use crate::id::{ChannelId, DeviceId, FunctionId, GroupId, Id, IdVec, LinkId};
use crate::program::{Device, Instruction, Pass, Program, QueueKind};
use crate::program::{Group, Shared};
use crate::tensor::DType;
use crate::units::{Bytes, BytesPerSecond, Flops, FlopsPerSecond, Nanos};
use std::collections::BTreeSet;

/// The time of everything that takes time in one program. Devices of equal rates share one column of times.
#[derive(Clone, Debug, PartialEq)]
pub struct Costs {
    column: IdVec<DeviceId, usize>,
    columns: Vec<IdVec<FunctionId, Nanos>>,
    functions: IdVec<FunctionId, Cost>,
    overhead: IdVec<DeviceId, Nanos>,
    /// The rate of fills and copies; none where they are free.
    memory: IdVec<DeviceId, Option<BytesPerSecond>>,
    messages: IdVec<ChannelId, Nanos>,
    reductions: IdVec<GroupId, Nanos>,
    upload: IdVec<DeviceId, Wire>,
    download: IdVec<DeviceId, Wire>,
}

/// The links of a route seen as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Wire {
    latency: Nanos,
    /// None for an empty route, which costs nothing.
    bandwidth: Option<BytesPerSecond>,
}

impl Wire {
    /// Latencies add up, the slowest link sets the rate.
    fn new(program: &Program, route: &[LinkId]) -> Self {
        let links = || route.iter().filter_map(|&link| program.links.get(link));
        Self {
            latency: links().map(|link| link.latency).sum(),
            bandwidth: links().map(|link| link.bandwidth).min(),
        }
    }

    fn time(self, bytes: Bytes) -> Nanos {
        self.latency + self.bandwidth.map(|rate| bytes.at(rate)).unwrap_or_default()
    }
}

impl Costs {
    /// The least times that the rates of the devices allow.
    ///
    /// - A call: the sum over kernels of `max(flops / rate, traffic / bandwidth)`; the rate is the peak for the element
    ///   type of the kernel's first floating-point operand, the slowest of the device where it states none for that
    ///   type. An abstract function runs at the fastest rate of the device. Host compute takes its traffic at the rate of the
    ///   host's memory: what runs there is bound by it.
    /// - A message: the latencies of its route plus its size at the slowest link; nothing on an empty route.
    /// - A reduction over k members by a ring: `2 (k - 1)` rounds of a k-th of the tensor at the slowest link and the
    ///   mean latency of a hop; nothing on an empty route.
    /// - A copy between the arenas of a device: as a message over its route. A copy inside an arena, or one without a
    ///   route, reads and writes at the bandwidth of the device; a fill writes at it.
    /// - No overhead per instruction.
    pub fn roofline(program: &Program) -> Self {
        let functions: IdVec<FunctionId, Cost> = program.functions.values().map(function).collect();
        let hosted = hosted(program);
        let mut kinds: Vec<&Device> = Vec::new();
        let mut columns = Vec::new();
        let mut column = IdVec::new();
        for device in program.devices.values() {
            let known = kinds.iter().position(|kind| rates(kind) == rates(device));
            column.push(known.unwrap_or_else(|| {
                kinds.push(device);
                let time = |(id, each): (FunctionId, &Function)| match hosted.contains(&id) {
                    true => functions[id].traffic.at(device.host_bandwidth),
                    false => least_time(each, device),
                };
                columns.push(program.functions.iter().map(time).collect());
                kinds.len() - 1
            }));
        }
        Self {
            column,
            columns,
            functions,
            overhead: program.devices.values().map(|_| Nanos::ZERO).collect(),
            memory: program.devices.values().map(|device| Some(device.bandwidth)).collect(),
            messages: program
                .channels
                .values()
                .map(|channel| Wire::new(program, &channel.route).time(channel.bytes()))
                .collect(),
            reductions: program
                .groups
                .values()
                .map(|group| shared(group, Wire::new(program, &group.route)))
                .collect(),
            upload: program.devices.values().map(|device| Wire::new(program, &device.upload)).collect(),
            download: program.devices.values().map(|device| Wire::new(program, &device.download)).collect(),
        }
    }

    /// The times of a profile, for every function that the program calls. Messages take the latency and rate that were
    /// measured on the sender's kind of device; a reduction is a ring of such messages.
    ///
    /// # Errors
    /// Devices and functions that were not measured, or that changed since; all at once.
    pub fn measured(program: &Program, profile: &Profile) -> Result<Self, ProfileError> {
        let mut costs = Self::roofline(program);
        let mut error = ProfileError::default();
        let mut called = vec![BTreeSet::new(); program.devices.len()];
        for queue in program.queues.values() {
            for instruction in &queue.instructions {
                if let Instruction::Run { function, .. } = instruction {
                    called[queue.device.index()].insert(*function);
                }
            }
        }
        let mut missing = BTreeSet::new();
        let mut changed = BTreeSet::new();
        let mut unknown = BTreeSet::new();
        let mut kinds: Vec<&str> = Vec::new();
        let mut columns: Vec<IdVec<FunctionId, Nanos>> = Vec::new();
        for (id, device) in program.devices.iter() {
            let Some(measured) = profile.devices.get(&device.name) else {
                unknown.insert(device.name.clone());
                continue;
            };
            let column = kinds.iter().position(|&kind| kind == device.name).unwrap_or_else(|| {
                kinds.push(&device.name);
                columns.push(program.functions.values().map(|_| Nanos::ZERO).collect());
                kinds.len() - 1
            });
            costs.column[id] = column;
            costs.overhead[id] = measured.overhead;
            costs.memory[id] = Some(measured.memory_bandwidth);
            for &function in &called[id.index()] {
                let name = &program.functions[function].name;
                let cost = costs.functions[function];
                match measured.functions.get(name) {
                    None => _ = missing.insert((device.name.clone(), name.clone())),
                    Some(entry) if entry.flops != cost.flops || entry.traffic != cost.traffic => {
                        changed.insert((device.name.clone(), name.clone()));
                    }
                    Some(entry) => columns[column][function] = entry.time,
                }
            }
        }
        costs.columns = columns;
        let wire = |device: DeviceId| {
            let measured = program.devices.get(device).and_then(|device| profile.devices.get(&device.name));
            measured.map(|measured| Wire {
                latency: measured.message_latency,
                bandwidth: Some(measured.message_bandwidth),
            })
        };
        for (id, channel) in program.channels.iter() {
            costs.messages[id] =
                wire(channel.from).map(|wire| wire.time(channel.bytes())).unwrap_or_default();
        }
        for (id, group) in program.groups.iter() {
            let hop = group.members.first().and_then(|&member| wire(member));
            let members = group.members.len();
            costs.reductions[id] = hop
                .map(|hop| Wire { latency: hop.latency * members as u64, ..hop })
                .map(|wire| shared(group, wire))
                .unwrap_or_default();
        }
        error.devices.extend(unknown);
        error.missing.extend(missing);
        error.changed.extend(changed);
        if error.is_empty() { Ok(costs) } else { Err(error) }
    }

    /// One unit (a nanosecond) for a pass, two for both backward passes in one, for a pair both, nothing for all else: the costs behind the
    /// pictures of papers.
    pub fn unit(program: &Program) -> Self {
        let mut costs = Self::roofline(program);
        let mut times: IdVec<FunctionId, Nanos> = program.functions.values().map(|_| Nanos::ZERO).collect();
        for instruction in program.queues.values().flat_map(|queue| &queue.instructions) {
            let Instruction::Run { function, work, .. } = instruction else { continue };
            let time = |(pass, _)| match pass {
                Pass::F | Pass::B | Pass::W | Pass::R => Nanos(1),
                Pass::BW => Nanos(2),
            };
            times[*function] = work.passes().map(time).sum();
        }
        costs.columns.fill(times);
        let free = Wire { latency: Nanos::ZERO, bandwidth: None };
        costs.messages.iter_mut().for_each(|(_, time)| *time = Nanos::ZERO);
        costs.reductions.iter_mut().for_each(|(_, time)| *time = Nanos::ZERO);
        costs.memory.iter_mut().for_each(|(_, rate)| *rate = None);
        costs.upload.iter_mut().chain(costs.download.iter_mut()).for_each(|(_, wire)| *wire = free);
        costs
    }

    /// The same times with an overhead for every instruction but waits.
    pub fn with_overhead(mut self, overhead: Nanos) -> Self {
        for (_, each) in self.overhead.iter_mut() {
            *each = overhead;
        }
        self
    }

    /// The time of one call, without overhead.
    pub fn call(&self, device: DeviceId, function: FunctionId) -> Nanos {
        self.columns[self.column[device]][function]
    }

    /// The time of a message, without overhead.
    pub fn message(&self, channel: ChannelId) -> Nanos {
        self.messages[channel]
    }

    /// The time of a reduction once all members are there, without overhead.
    pub fn reduction(&self, group: GroupId) -> Nanos {
        self.reductions[group]
    }

    /// The time of a fill, without overhead.
    pub fn fill(&self, device: DeviceId, bytes: Bytes) -> Nanos {
        self.memory[device].map(|rate| bytes.at(rate)).unwrap_or_default()
    }

    /// The time of a copy inside an arena of a device, without overhead.
    pub fn copy(&self, device: DeviceId, bytes: Bytes) -> Nanos {
        self.memory[device].map(|rate| (bytes * 2).at(rate)).unwrap_or_default()
    }

    /// The time of a copy from the host arena to the device arena, without overhead.
    pub fn upload(&self, device: DeviceId, bytes: Bytes) -> Nanos {
        self.transfer(self.upload[device], device, bytes)
    }

    /// The time of a copy from the device arena to the host arena, without overhead.
    pub fn download(&self, device: DeviceId, bytes: Bytes) -> Nanos {
        self.transfer(self.download[device], device, bytes)
    }

    fn transfer(&self, wire: Wire, device: DeviceId, bytes: Bytes) -> Nanos {
        if wire.bandwidth.is_some() { wire.time(bytes) } else { self.copy(device, bytes) }
    }

    /// What every instruction of a device but a wait takes on top of its work.
    pub fn overhead(&self, device: DeviceId) -> Nanos {
        self.overhead[device]
    }

    /// Operations and traffic of one call of a function, whatever the device.
    pub fn function(&self, function: FunctionId) -> Cost {
        self.functions[function]
    }

    /// The rate that a function reaches on a device; none for a call that takes no time.
    pub fn effective_rate(&self, device: DeviceId, function: FunctionId) -> Option<FlopsPerSecond> {
        let nanos = u128::from(self.call(device, function).0);
        let rate = (u128::from(self.functions[function].flops.0) * 1_000_000_000).checked_div(nanos)?;
        Some(FlopsPerSecond(u64::try_from(rate).unwrap_or(u64::MAX)))
    }

    /// The memory traffic that a function reaches on a device; none for a call that takes no time.
    pub fn effective_bandwidth(&self, device: DeviceId, function: FunctionId) -> Option<BytesPerSecond> {
        let nanos = u128::from(self.call(device, function).0);
        let rate = (u128::from(self.functions[function].traffic.0) * 1_000_000_000).checked_div(nanos)?;
        Some(BytesPerSecond(u64::try_from(rate).unwrap_or(u64::MAX)))
    }
}

/// What the times of a device depend on.
fn rates(device: &Device) -> (BytesPerSecond, BytesPerSecond, &[(DType, FlopsPerSecond)]) {
    (device.bandwidth, device.host_bandwidth, &device.rates)
}

/// The functions that run on hosts.
fn hosted(program: &Program) -> BTreeSet<FunctionId> {
    let queues = program.queues.values().filter(|queue| queue.kind == QueueKind::HostCompute);
    let called = queues.flat_map(|queue| &queue.instructions).filter_map(|instruction| match instruction {
        Instruction::Run { function, .. } => Some(*function),
        Instruction::Send { .. }
        | Instruction::Recv { .. }
        | Instruction::Copy { .. }
        | Instruction::Fill { .. }
        | Instruction::Reduce { .. }
        | Instruction::Wait { .. } => None,
    });
    called.collect()
}

/// The time in which a group meets, over a wire that goes once round all members.
fn shared(group: &Group, wire: Wire) -> Nanos {
    let (members, bytes) = (group.members.len(), group.ty.bytes());
    match group.result {
        Shared::Sum => ring(wire, members, bytes),
        // Passed on through the ring piece by piece.
        Shared::Broadcast if members > 1 => wire.time(bytes),
        Shared::Broadcast => Nanos::ZERO,
    }
}

/// The time of a ring reduction.
fn ring(wire: Wire, members: usize, bytes: Bytes) -> Nanos {
    let members = members as u64;
    if members < 2 {
        return Nanos::ZERO;
    }
    let hop = Wire { latency: Nanos(wire.latency.0.div_ceil(members)), ..wire };
    hop.time(Bytes(bytes.0.div_ceil(members))) * (2 * (members - 1))
}

/// The roofline of one call.
fn least_time(function: &Function, device: &Device) -> Nanos {
    match &function.body {
        Body::Kernels { values, kernels } => kernels
            .iter()
            .map(|kernel| {
                let operands = kernel.inputs.iter().chain(kernel.outputs.iter().map(|output| &output.value));
                let dtype = operands
                    .filter_map(|&value| values.get(value).map(|value| value.ty.dtype))
                    .find(|&dtype| dtype != DType::U32);
                let stated = device.rates.iter().find(|rate| Some(rate.0) == dtype);
                let rate = stated.map(|rate| rate.1).or_else(|| device.rates.iter().map(|rate| rate.1).min());
                limit(super::kernel(kernel, values), rate, device)
            })
            .sum(),
        &Body::Abstract { flops, traffic } => {
            limit(Cost { flops, traffic }, device.rates.iter().map(|rate| rate.1).max(), device)
        }
    }
}

/// The longer of computing and moving. Work without operations needs no rate.
fn limit(Cost { flops, traffic }: Cost, rate: Option<FlopsPerSecond>, device: &Device) -> Nanos {
    let compute = if flops == Flops::ZERO { Nanos::ZERO } else { flops.at(rate.unwrap_or_default()) };
    compute.max(traffic.at(device.bandwidth))
}
