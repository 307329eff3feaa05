//! `docs/memory.md`: what `recompute` and `offload` make of the shipped example of a large model.

use super::support::{filled, repository, settle, spec};
use pipec_compiler::pipeline::{Better, Compiled, Error, compile};
use pipec_compiler::spec::{Level, Offload, Recompute, Resolution, Schedule};
use pipec_program::simulate::simulate;
use pipec_program::{Bytes, Costs, Instruction, Nanos, Work};

const PAGE: &str = "docs/memory.md";

/// The example with a schedule without slices.
fn example() -> Resolution {
    let text = std::fs::read_to_string(repository().join("examples/llama2_13b.pipe")).unwrap();
    let mut resolution = spec(&text);
    resolution.spec.pipeline.schedule = Schedule::OneFOneB;
    resolution
}

fn compiled(resolution: &Resolution, recompute: Recompute, offload: Offload) -> Result<Compiled, Error> {
    let mut spec = resolution.spec.clone();
    (spec.pipeline.recompute, spec.pipeline.offload) = (recompute, offload);
    compile(&spec, &resolution.origins, "", &mut ())
}

/// When the step ends, and when its last pass does.
fn times(compiled: &Compiled) -> (Nanos, Nanos) {
    let program = &compiled.program;
    let timeline = simulate(program, &Costs::roofline(program));
    let is_pass = |event: &&pipec_program::Event| {
        let instruction = &program.queues[event.queue].instructions[event.position as usize];
        matches!(instruction, Instruction::Run { work: Work::Pass(..) | Work::Pair(_), .. })
    };
    let passes = timeline.events().iter().filter(is_pass).map(|event| event.end).max();
    (timeline.makespan(), passes.unwrap_or_default())
}

/// The fullest device and the fullest host.
fn peaks(compiled: &Compiled) -> (Bytes, Bytes) {
    let most = |arenas: &pipec_program::id::IdVec<_, pipec_compiler::lower::Arena>| {
        arenas.values().map(|arena| arena.end).max().unwrap_or_default()
    };
    (most(&compiled.arenas), most(&compiled.hosts))
}

fn row(what: &str, compiled: &Result<Compiled, Error>) -> String {
    match compiled {
        Ok(compiled) => {
            let ((step, passes), (device, host)) = (times(compiled), peaks(compiled));
            let host = if host == Bytes::ZERO { "–".to_owned() } else { host.to_string() };
            format!("| {what} | {device} | {host} | {passes} | {step} |\n")
        }
        Err(Error::Diagnostics(diagnostics)) => {
            let message = &diagnostics[0].message;
            let short = message.split(':').next().unwrap_or(message);
            format!("| {what} | {short} | – | – | – |\n")
        }
        Err(Error::Internal(message)) => panic!("{message}"),
    }
}

fn stages(resolution: &Resolution, compiled: &Compiled) -> String {
    let mut text = "| stage | modes | micro-batches alive | left | next better mode |\n".to_owned();
    text += "| --- | --- | --- | --- | --- |\n";
    for reason in compiled.reasons(&resolution.spec.model) {
        let mode = |((layer, mode), count): (&(pipec_compiler::spec::LayerId, _), &usize)| {
            format!("{count} {} `{mode}`", compiled.layers[*layer].name)
        };
        let modes: Vec<String> = reason.modes.iter().map(mode).collect();
        let next = reason.better.map_or("–".to_owned(), |Better { layer, from, to, gain, needs }| {
            format!("{} `{from}` to `{to}`: {gain} less for {needs}", compiled.layers[layer].name)
        });
        text += &format!(
            "| {} | {} | {} | {} | {next} |\n",
            reason.stage,
            modes.join(", "),
            reason.live,
            reason.left
        );
    }
    text
}

#[test]
fn the_page_of_memory_is_what_the_compiler_does() {
    let resolution = example();
    let mut text =
        "| | fullest device | host | passes | step |\n| --- | --- | --- | --- | --- |\n".to_owned();
    let mut fastest: Option<Nanos> = None;
    for level in Level::ALL {
        let uniform = compiled(&resolution, Recompute::Every(level), Offload::None);
        text += &row(&format!("`recompute: {}`", level.name()), &uniform);
        let time = uniform.as_ref().map(|compiled| times(compiled).1).ok();
        fastest = fastest.min(time).or(fastest).or(time);
    }
    let auto = compiled(&resolution, Recompute::Auto, Offload::None);
    text += &row("`recompute: auto`", &auto);
    let both = compiled(&resolution, Recompute::Auto, Offload::Auto);
    text += &row("`recompute: auto, offload: auto`", &both);
    let (auto, both) = (auto.unwrap(), both.unwrap());
    // The point of it: faster than the best that is the same everywhere, and faster still with the host.
    assert!(times(&auto).1 < fastest.expect("full recomputation fits"));
    assert!(
        times(&auto).0
            < times(&compiled(&resolution, Recompute::Every(Level::Full), Offload::None).unwrap()).0
    );
    assert!(times(&both).1 < times(&auto).1);

    let page = std::fs::read_to_string(repository().join(PAGE)).unwrap();
    let page = filled(&page, "example", &text);
    let expected = filled(&page, "stages", &stages(&resolution, &auto));
    settle(PAGE, &std::fs::read_to_string(repository().join(PAGE)).unwrap(), &expected);
}
