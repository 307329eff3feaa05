//! The simulator against closed forms, laws and an independent evaluation of the dependences.

mod programs;

use pipec_program::simulate::{Activity, bubble, critical_path, device_use, link_use, messages, step_ends};
use pipec_program::*;
use programs::*;
use proptest::prelude::*;

fn timeline(program: &Verified) -> Timeline {
    simulate(program, &Costs::roofline(program))
}

/// Micro-batches m on p stages with equal costs and free messages: (m + p - 1)(tF + tB), Huang et al. 2019 and
/// Narayanan et al. 2021.
#[test]
fn gpipe_and_one_f_one_b_meet_their_closed_form() {
    for devices in 1..=6 {
        for micro_batches in 1..=9 {
            let expected = u64::from(micro_batches + devices - 1) * (10 + 20);
            for (name, pipeline) in [
                ("gpipe", gpipe(devices, micro_batches)),
                ("one_f_one_b", one_f_one_b(devices, micro_batches)),
            ] {
                let makespan = timeline(&verified(&pipeline.without_parameters())).makespan();
                assert_eq!(makespan, Nanos(expected), "{name} {devices} {micro_batches}");
            }
        }
    }
}

/// The same in units: one for F, two for BW, whatever the program says of rates, links and state.
#[test]
fn unit_costs_leave_nothing_but_passes() {
    let program = verified(&Pipeline { link: Some((1, 100)), update: 9, ..one_f_one_b(4, 8) });
    assert_eq!(simulate(&program, &Costs::unit(&program)).makespan(), Nanos((8 + 4 - 1) * 3));
}

#[test]
fn the_bubble_of_one_f_one_b_is_p_minus_1_over_m_plus_p_minus_1() {
    let program = verified(&one_f_one_b(4, 8).without_parameters());
    let uses = device_use(&program, &timeline(&program));
    assert!((bubble(&uses) - 3.0 / 11.0).abs() < 1e-12);
    for each in uses.values() {
        assert_eq!(each.busy, Nanos(8 * 30));
        assert_eq!(each.busy + each.idle, Nanos(11 * 30));
    }
}

/// Splitting the backward pass and delaying weight gradients beats 1F1B (Qi et al. 2024).
#[test]
fn weight_gradients_fill_the_bubble() {
    let whole = timeline(&verified(&one_f_one_b(4, 8).without_parameters())).makespan();
    let split = timeline(&verified(&zero_bubble(4, 8).without_parameters())).makespan();
    assert!(split < whole, "{split} against {whole}");
}

#[test]
fn a_message_takes_latency_and_size_over_bandwidth() {
    // Two devices, one micro-batch: F, message, F BW, message, BW. 256 bytes at 1 GB/s take 256 ns.
    let program =
        verified(&Pipeline { link: Some((1_000_000_000, 7)), ..one_f_one_b(2, 1).without_parameters() });
    let timeline = timeline(&program);
    assert_eq!(timeline.makespan(), Nanos(10 + 263 + 10 + 20 + 263 + 20));
    let links = link_use(&program, &timeline);
    assert_eq!(
        links.values().map(|link| (link.busy, link.bytes, link.transfers)).collect::<Vec<_>>(),
        [(Nanos(263), Bytes(256), 1), (Nanos(263), Bytes(256), 1)]
    );
}

#[test]
fn a_link_carries_one_message_at_a_time() {
    // Both directions of the first boundary share one wire: four messages of 100 ns cannot overlap.
    let mut program = build(&Pipeline { link: Some((2_560_000_000, 0)), ..one_f_one_b(2, 2) });
    let wire = LinkId(0);
    for (_, channel) in program.channels.iter_mut() {
        channel.route = vec![wire];
    }
    let program = prove(program);
    let timeline = timeline(&program);
    let mut sends: Vec<_> = timeline
        .events()
        .iter()
        .filter(|event| program.queues[event.queue].kind == QueueKind::Send)
        .map(|event| (event.start, event.end))
        .collect();
    sends.sort_unstable();
    assert_eq!(sends.len(), 4);
    assert!(sends.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{sends:?}");
    assert_eq!(link_use(&program, &timeline)[wire].busy, Nanos(400));
}

#[test]
fn the_critical_path_divides_the_makespan() {
    let program = verified(&Pipeline { link: Some((1_000_000_000, 7)), update: 5, ..one_f_one_b(2, 1) });
    let timeline = timeline(&program);
    let path = critical_path(&program, &timeline);
    let times: Vec<_> = path.times.iter().map(|(activity, time)| (*activity, time.0)).collect();
    assert_eq!(
        times,
        [
            (Activity::Pass(Pass::F), 20),
            (Activity::Pass(Pass::BW), 40),
            (Activity::Step(StepWork::Update), 5),
            (Activity::Message, 526),
            (Activity::Fill, 1),
        ]
    );
    assert_eq!(path.times.values().copied().sum::<Nanos>(), timeline.makespan());
}

#[test]
fn a_rendezvous_holds_the_sender_and_a_place_lets_it_go() {
    // The receiver is busy with the first micro-batch when the second and third have been made.
    let slow = |capacity| {
        let pipeline = Pipeline { capacity, ..gpipe(2, 6).without_parameters() };
        let mut program = build(&pipeline);
        // The second device computes forward ten times slower.
        let name = "forward_g1";
        let (slow, _) = program.functions.iter().find(|(_, function)| function.name == name).unwrap();
        program.functions[slow].body = Body::Abstract { flops: Flops(100), traffic: Bytes::ZERO };
        let program = prove(program);
        let timeline = timeline(&program);
        timeline.queue(QueueId(0)).iter().map(|event| (event.name(&program), event.end.0)).collect::<Vec<_>>()
    };
    let last_forward =
        |events: &[(String, u64)]| events.iter().find(|event| event.0 == "F g0.m5.i0").unwrap().1;
    let (held, free) = (last_forward(&slow(0)), last_forward(&slow(6)));
    assert_eq!(free, 60);
    assert!(held > free, "{held}");
}

#[test]
fn reductions_meet_and_take_a_ring() {
    // The weights of both stages are tied: one parameter with a copy on each device.
    let mut program = build(&one_f_one_b(2, 1));
    let link =
        |name: &str| Link { name: name.into(), bandwidth: BytesPerSecond(1_000_000_000), latency: Nanos(3) };
    let route = vec![program.links.push(link("there")), program.links.push(link("back"))];
    let members = vec![DeviceId(0), DeviceId(1)];
    let group = program.groups.push(Group {
        result: Shared::Sum,
        members,
        ty: TensorType::new(DType::F32, &[128]),
        route,
    });
    let copies = program.parameters.values().flat_map(|each| each.copies.clone()).collect();
    program.parameters = vec![Parameter { copies, ..program.parameters[ParameterId(0)].clone() }].into();
    // Each device gets a collective queue after its own, and its update, which comes last, waits for it.
    let mut queues = IdVec::new();
    for device in [DeviceId(0), DeviceId(1)] {
        let compute = QueueId(queues.len() as u32);
        let own = program.queues.values().filter(|queue| queue.device == device).cloned().collect::<Vec<_>>();
        let collective = QueueId(compute.0 + own.len() as u32);
        for mut queue in own {
            for instruction in &mut queue.instructions {
                if let Instruction::Wait { queue, .. } = instruction {
                    queue.0 += device.0;
                }
            }
            if queue.kind == QueueKind::Compute {
                let update = queue.instructions.len() - 1;
                queue.instructions.insert(update, Instruction::Wait { queue: collective, position: 2 });
            }
            queues.push(queue);
        }
        let before_update = queues[compute].instructions.len() as u32 - 2;
        let view = program.parameters[ParameterId(0)].copies[device.0 as usize].gradient;
        let instructions = vec![
            Instruction::Wait { queue: compute, position: before_update },
            Instruction::Reduce { group, view, work: Work::Step(StepWork::Tie) },
        ];
        queues.push(Queue { device, kind: QueueKind::Collective, instructions });
    }
    program.queues = queues;
    let program = prove(program);
    // Fill and passes end at 61; two rounds of 256 bytes and 3 ns; the update takes nothing.
    assert_eq!(timeline(&program).makespan(), Nanos(61 + 2 * (256 + 3)));
}

#[test]
fn copies_take_the_host_link_and_fills_the_memory() {
    let mut program = build(&one_f_one_b(1, 8));
    let device = DeviceId(0);
    let link = program.links.push(Link {
        name: "host0->d0".into(),
        bandwidth: BytesPerSecond(500_000_000),
        latency: Nanos(9),
    });
    program.devices[device].upload = vec![link];
    program.devices[device].bandwidth = BytesPerSecond(4_000_000_000);
    let mut buffer = |name: &str, space, offset| {
        let (offset, bytes, category) = (Bytes(offset), Bytes(512), Category::Activations);
        let buffer =
            program.buffers.push(Buffer { name: name.into(), device, space, offset, bytes, category });
        View { buffer, offset: Bytes::ZERO, bytes }
    };
    let (host, back) = (buffer("host", Space::Host, 0), buffer("back", Space::Device, 1 << 20));
    let tokens = program.feeds[0].view;
    let down = Instruction::Copy { from: tokens, to: host };
    let down = program.queues.push(Queue { device, kind: QueueKind::DeviceToHost, instructions: vec![down] });
    let up = vec![Instruction::Wait { queue: down, position: 1 }, Instruction::Copy { from: host, to: back }];
    let up = program.queues.push(Queue { device, kind: QueueKind::HostToDevice, instructions: up });
    let program = prove(program);
    let timeline = timeline(&program);
    let times =
        |queue| timeline.queue(queue).iter().map(|event| (event.start.0, event.end.0)).collect::<Vec<_>>();
    // The way down has no route: it reads and writes at the bandwidth of the device.
    assert_eq!(times(down), [(0, 256)]);
    assert_eq!(times(up), [(256, 256 + 9 + 1024)]);
    assert_eq!(timeline.queue(QueueId(0))[0].duration(), Nanos(128));
    assert_eq!(link_use(&program, &timeline)[link].transfers, 1);
}

#[test]
fn a_device_starts_its_next_step_when_it_is_through() {
    let program = verified(&one_f_one_b(4, 8).without_parameters());
    let ends = |program: &Verified, steps| step_ends(program, &Costs::roofline(program), steps);
    // The first device is the first to start and the last to finish: nothing to gain.
    assert_eq!(ends(&program, 4), [330, 660, 990, 1320].map(Nanos));
    assert!(ends(&program, 0).is_empty());
    // The last device updates longest: it need not wait for the first forward pass again.
    let mut program = build(&one_f_one_b(2, 2));
    let update =
        program.functions.iter().find(|(_, function)| function.name == "update_g1").map(|(id, _)| id);
    program.functions[update.unwrap()].body = Body::Abstract { flops: Flops(1000), traffic: Bytes::ZERO };
    let program = prove(program);
    let busy = 1 + 2 * 30 + 1000;
    assert_eq!(ends(&program, 3), [busy + 10, 2 * busy + 10, 3 * busy + 10].map(Nanos));
}

#[test]
fn messages_pair_sends_with_receives() {
    let program = verified(&one_f_one_b(3, 4));
    let found = messages(&program);
    assert_eq!(found.len(), 2 * 2 * 4);
    for message in found {
        let work = |(queue, position): (QueueId, u32)| match &program.queues[queue].instructions
            [position as usize]
        {
            Instruction::Send { work, .. } | Instruction::Recv { work, .. } => work.clone(),
            other => panic!("{other:?} is no side of a message"),
        };
        assert_eq!(work(message.send), work(message.recv));
    }
}

#[test]
fn measured_events_must_be_a_timeline() {
    let program = verified(&one_f_one_b(2, 2));
    let simulated = timeline(&program);
    let mut events = simulated.events().to_vec();
    events.reverse();
    assert_eq!(Timeline::measured(&program, events.clone()).unwrap(), simulated);
    let error = |events: Vec<Event>| Timeline::measured(&program, events).unwrap_err().to_string();
    let event = simulated.events()[1];
    let unknown = Event { position: 999, ..event };
    assert_eq!(error(vec![unknown]), "event of instruction 999 of q0: the program has no such instruction");
    let backwards = Event { end: Nanos(0), start: Nanos(1), ..event };
    assert_eq!(error(vec![backwards]), "event of instruction 1 of q0: it ends before it starts");
    assert_eq!(error(vec![event, event]), "event of instruction 1 of q0: it was recorded twice");
    let late = Event { position: 0, start: Nanos(0), end: Nanos(5), ..event };
    let early = Event { start: Nanos(4), ..event };
    assert_eq!(
        error(vec![early, late]),
        "event of instruction 1 of q0: it starts before its predecessor has ended"
    );
}

#[test]
fn a_profile_must_belong_to_the_functions() {
    use pipec_program::cost::{DeviceProfile, FunctionProfile};
    let program = verified(&one_f_one_b(2, 2));
    let measured = |time| FunctionProfile { time: Nanos(time), flops: Flops(10), traffic: Bytes::ZERO };
    let mut device = DeviceProfile {
        functions: [("forward_g0".to_owned(), measured(100)), ("backward_full_g0".to_owned(), measured(1))]
            .into(),
        overhead: Nanos(1),
        message_latency: Nanos(2),
        message_bandwidth: BytesPerSecond(1_000_000_000),
        memory_bandwidth: BytesPerSecond(1_000_000_000),
    };
    let profile = |device: &DeviceProfile| Profile { devices: [("unit".to_owned(), device.clone())].into() };
    let error = Costs::measured(&program, &profile(&device)).unwrap_err();
    let pair = |name: &str| ("unit".to_owned(), name.to_owned());
    assert_eq!(error.changed, [pair("backward_full_g0")]);
    assert_eq!(
        error.missing,
        [pair("backward_full_g1"), pair("forward_g1"), pair("update_g0"), pair("update_g1")]
    );
    assert_eq!(Costs::measured(&program, &Profile::default()).unwrap_err().devices, ["unit"]);

    for (id, function) in program.functions.iter() {
        let cost = Costs::roofline(&program).function(id);
        let entry =
            FunctionProfile { time: cost.flops.into_time(), flops: cost.flops, traffic: cost.traffic };
        device.functions.insert(function.name.clone(), entry);
    }
    let costs = Costs::measured(&program, &profile(&device)).unwrap();
    assert_eq!(costs.message(ChannelId(0)), Nanos(2 + 256));
    assert_eq!(costs.call(DeviceId(1), FunctionId(0)), Nanos(10));
    assert_eq!(costs.effective_rate(DeviceId(1), FunctionId(0)), Some(FlopsPerSecond(1_000_000_000)));
}

trait IntoTime {
    fn into_time(self) -> Nanos;
}

impl IntoTime for Flops {
    fn into_time(self) -> Nanos {
        Nanos(self.0)
    }
}

prop_compose! {
    fn pipelines()(
        devices in 1u32..6,
        micro_batches in 1u32..7,
        kind in 0..3,
        times in [1u64..50, 1..50, 1..50, 1..50, 1..50],
        update in 0u64..30,
        capacity in 0u32..3,
        link in proptest::option::of((0u64..40, 1u64..4)),
    ) -> Pipeline {
        let pipeline = match kind {
            0 => gpipe(devices, micro_batches),
            1 => one_f_one_b(devices, micro_batches),
            _ => zero_bubble(devices, micro_batches),
        };
        // Rates that divide the size of a message exactly, so that doubling is exact.
        let link = link.map(|(latency, rate)| (1_000_000_000 << rate, latency));
        Pipeline { times, update, capacity, link, ..pipeline }
    }
}

/// The same program with every time doubled.
fn doubled(pipeline: &Pipeline) -> Pipeline {
    Pipeline {
        times: pipeline.times.map(|time| time * 2),
        update: pipeline.update * 2,
        link: pipeline.link.map(|(bandwidth, latency)| (bandwidth / 2, latency * 2)),
        ..pipeline.clone()
    }
}

/// The longest chain of durations through queues, waits and messages, by relaxation until nothing changes.
fn longest_chain(program: &Program, costs: &Costs) -> Nanos {
    let pairs = messages(program);
    let mut ends: Vec<Vec<Nanos>> =
        program.queues.values().map(|queue| vec![Nanos::ZERO; queue.instructions.len()]).collect();
    loop {
        let before = ends.clone();
        for (id, queue) in program.queues.iter() {
            for (position, instruction) in queue.instructions.iter().enumerate() {
                let at = |ends: &[Vec<Nanos>], queue: QueueId, position: usize| {
                    position.checked_sub(1).map(|last| ends[queue.0 as usize][last]).unwrap_or_default()
                };
                let mut start = at(&ends, id, position);
                let mut time = Nanos::ZERO;
                match instruction {
                    Instruction::Run { function, .. } => time = costs.call(queue.device, *function),
                    Instruction::Fill { view } => time = costs.fill(queue.device, view.bytes),
                    Instruction::Wait { queue, position } => {
                        start = start.max(at(&ends, *queue, *position as usize));
                    }
                    Instruction::Send { channel, .. } | Instruction::Recv { channel, .. } => {
                        let here = (id, position as u32);
                        let pair = pairs.iter().find(|pair| pair.send == here || pair.recv == here).unwrap();
                        time = costs.message(*channel);
                        let sent = at(&ends, pair.send.0, pair.send.1 as usize);
                        let rendezvous = program.channels[*channel].capacity == 0;
                        if rendezvous {
                            start = start.max(sent).max(at(&ends, pair.recv.0, pair.recv.1 as usize));
                        } else if here == pair.recv {
                            // The message may have been on its way before the receiver came.
                            let arrived = sent + time;
                            time = Nanos::ZERO;
                            start = start.max(arrived);
                        }
                    }
                    other => panic!("{other:?} does not occur here"),
                }
                ends[id.0 as usize][position] = start + time;
            }
        }
        if ends == before {
            return ends.into_iter().flatten().max().unwrap_or_default();
        }
    }
}

proptest! {
    #[test]
    fn the_makespan_covers_the_work_and_the_longest_chain(pipeline in pipelines()) {
        let program = verified(&pipeline);
        let costs = Costs::roofline(&program);
        let timeline = simulate(&program, &costs);
        for each in device_use(&program, &timeline).values() {
            prop_assert!(each.busy <= timeline.makespan());
        }
        let chain = longest_chain(&program, &costs);
        prop_assert!(timeline.makespan() >= chain, "{} < {}", timeline.makespan(), chain);
        // Without links nothing but dependences delays anything (places of a channel aside).
        if pipeline.link.is_none() && pipeline.capacity == 0 {
            prop_assert_eq!(timeline.makespan(), chain);
        }
        let path = critical_path(&program, &timeline);
        prop_assert_eq!(path.times.values().copied().sum::<Nanos>(), timeline.makespan());
    }

    #[test]
    fn doubling_all_costs_doubles_the_makespan(pipeline in pipelines()) {
        // Without parameters, since a fill of a few bytes rounds up to a whole nanosecond in both.
        let pipeline = pipeline.without_parameters();
        let once = verified(&pipeline);
        let twice = verified(&doubled(&pipeline));
        let (once, twice) = (timeline(&once).makespan(), timeline(&twice).makespan());
        prop_assert_eq!(once * 2, twice);
    }

    #[test]
    fn independent_devices_may_stand_in_any_order(pipeline in pipelines(), seed in any::<u64>()) {
        // Devices are renumbered by a permutation; nothing but the numbers may change.
        let count = pipeline.orders.len() as u32;
        let mut permutation: Vec<u32> = (0..count).collect();
        permutation.sort_by_key(|&device| seed.rotate_left(device * 13).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut moved = pipeline.clone();
        for (old, &new) in permutation.iter().enumerate() {
            moved.placement[old] = new;
            moved.orders[new as usize] = pipeline.orders[old].clone();
        }
        let (here, there) = (verified(&pipeline), verified(&moved));
        let (first, second) = (timeline(&here), timeline(&there));
        prop_assert_eq!(first.makespan(), second.makespan());
        let names = |program: &Program, timeline: &Timeline| {
            let mut names: Vec<_> =
                timeline.events().iter().map(|event| (event.start, event.end, event.name(program))).collect();
            names.retain(|(_, _, name)| !name.starts_with("fill"));
            names.sort();
            names
        };
        prop_assert_eq!(names(&here, &first), names(&there, &second));
    }
}
