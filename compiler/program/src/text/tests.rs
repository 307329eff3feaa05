//! Text and back.

use super::{TextError, arbitrary, parse, print, print_with_lines};
use crate::entity::Entity;
use crate::id::{BufferId, FunctionId, QueueId, ValueId};
use proptest::prelude::*;

const SMALL: &str = r#"pprog 1
program "small"
batch { micro_batches 1, sequences 1, tokens 2, slices [2], stages 1, copies 1 }
training { seed 7 }
learning_rate constant { rate 0.001 }

buffer b0 "input" activations d0.device[0..64]
buffer b1 "output" activations d0.device[64..128]

function f0 "forward" {
    p0 "input": read 64
    p1 "output": write 64
    v0: f32[4,4] at p0+0
    v1: f32[4,4] at p1+0
    v1 = map(v0) { n0 = x0, n1 = sigmoid(n0), n2 = n0 * n1 } -> n2
}

queue q0 d0 compute {
    run f0(b0, b1[0..64]) for F g0.m0.i0
    wait q1>=3
}
"#;

fn errors(text: &str) -> Vec<String> {
    match parse(text) {
        Ok(_) => Vec::new(),
        Err(errors) => errors.iter().map(TextError::to_string).collect(),
    }
}

/// The errors of `SMALL` after one replacement.
fn errors_with(from: &str, to: &str) -> Vec<String> {
    assert!(SMALL.contains(from), "{from} is part of the text");
    errors(&SMALL.replacen(from, to, 1))
}

#[test]
fn lines_name_every_entity() {
    let (program, lines) = parse(SMALL).expect("the text is right");
    assert_eq!(lines.line(Entity::Program), Some(2));
    assert_eq!(lines.line(Entity::Data), None);
    assert_eq!(lines.line(Entity::Buffer(BufferId(1))), Some(8));
    assert_eq!(lines.line(Entity::Function(FunctionId(0))), Some(10));
    assert_eq!(lines.line(Entity::Value(FunctionId(0), ValueId(1))), Some(14));
    assert_eq!(lines.line(Entity::Kernel(FunctionId(0), 0)), Some(15));
    assert_eq!(lines.line(Entity::Queue(QueueId(0))), Some(18));
    assert_eq!(lines.line(Entity::Instruction(QueueId(0), 1)), Some(20));
    assert_eq!(lines.line(Entity::Instruction(QueueId(0), 2)), None);
    assert_eq!(print_with_lines(&program).1.line(Entity::Instruction(QueueId(0), 1)), Some(20));
}

#[test]
fn comments_spaces_and_units_are_free() {
    let text = SMALL
        .replace("64..128", " 64 B .. 0.125 KiB ")
        .replace("v0: f32[4,4] at p0+0", "; nothing\n\n  v0 : f32[ 4 , 4 ]\tat p0 + 0\r")
        .replace("b1[0..64]) for F g0.m0.i0", "b1 )for F g0.m0.i0 ; all of it");
    let canonical = SMALL.replace("b1[0..64]", "b1");
    let (program, lines) = parse(&text).expect("the text is right");
    assert_eq!(print(&program), canonical);
    assert_eq!(lines.line(Entity::Kernel(FunctionId(0), 0)), Some(17));
}

#[test]
fn errors_name_their_place() {
    let cases = [
        ("seed 7", "seed -7", "4:17: expected a whole number, found `-`"),
        ("0.001", "inf", "5:31: expected a finite number, found `inf`"),
        ("0.001", "1e999", "5:31: the number is too large"),
        ("b1 \"output\"", "b2 \"output\"", "8:8: ids count up from 0: expected b1"),
        ("\"input\" act", "\"input act", "7:11: the string has no end"),
        ("64..128", "64..0.0001 KiB", "8:46: the amount is not a whole number of the smallest unit"),
        ("64..128", "64..18446744073709551616", "8:46: the number does not fit 64 bits"),
        ("64..128", "64..16", "8:46: the range ends at 16, before it starts at 64"),
        ("run f0(b0", "run f0(b7", "19:12: b7 stands not above; its size is needed unless a range is given"),
        ("run f0(b0", "run f4294967296(b0", "19:10: the number does not fit 32 bits"),
        ("F g0.m0.i0", "F m0", "19:33: expected a stage such as `g0`, found `m0`"),
        (
            "F g0.m0.i0",
            "flush",
            "19:31: expected what it is for: a pass (F, B, W, BW, R) or step work (tie, norm, clip, update)",
        ),
        (">=3", ">=3 3", "20:16: expected the end of the line, found `3`"),
        ("= map", "+= shuffle", "15:11: there is no op `shuffle`"),
        ("n1 = sig", "n2 = sig", "15:29: nodes count up from 0: expected n1"),
        ("wait", "free", "20:5: expected an instruction (run, send, recv, copy, fill, reduce, wait) or `}`"),
        ("training { seed 7 }\n", "", "21:1: the text has no line `training`"),
        ("pprog 1", "pprog 2", "1:7: version 2 of the form is not known here; this pipec reads 1"),
    ];
    for (from, to, expected) in cases {
        assert_eq!(errors_with(from, to), [expected], "{from} replaced by {to}");
    }
    assert_eq!(errors(""), ["1:1: a program starts with the line `pprog 1`"]);
    assert_eq!(errors("model tiny {\n}\n"), ["1:1: a program starts with the line `pprog 1`"]);
    assert_eq!(errors(SMALL.trim_end().trim_end_matches('}')), ["21:1: the last block has no `}`"]);
}

#[test]
fn all_errors_of_a_text_are_reported() {
    let text = SMALL.replace("seed 7", "seeds").replace("v0: f32", "v0: f33").replace("wait q1", "wait b1");
    assert_eq!(
        errors(&text),
        [
            "4:12: expected `seed`, found `seeds`",
            "13:9: expected an element type (f32, f64, f16, bf16, u32), found `f33`",
            "20:10: expected a queue such as `q0`, found `b1`"
        ]
    );
}

#[test]
fn hostile_texts_end_soon() {
    assert_eq!(errors(&format!("pprog 1\n{}", "x\n".repeat(1_000_000))).len(), 101);
    assert_eq!(errors(&format!("pprog 1\n{}", "(".repeat(1_000_000))).len(), 5);
    assert_eq!(errors(&format!("pprog 1\nprogram \"{}", "\\".repeat(1_000_001))).len(), 4);
    assert_eq!(
        errors(&format!("pprog 1\nlearning_rate constant {{ rate {} }}", "9".repeat(1_000_000))).len(),
        4
    );
    // Ids far out of any table are numbers like others to the parser.
    assert!(parse(&SMALL.replace("q1>=3", "q4294967295>=4294967295")).is_ok());
}

proptest! {
    #[test]
    fn programs_survive_their_text(program in arbitrary::program()) {
        let (text, lines) = print_with_lines(&program);
        let (parsed, parsed_lines) = parse(&text).map_err(|errors| TestCaseError::fail(format!("{errors:?}\n{text}")))?;
        prop_assert_eq!(print(&parsed), text);
        prop_assert_eq!(parsed, program);
        prop_assert_eq!(parsed_lines, lines);
    }

    #[test]
    fn any_text_is_read_without_panic(text in any::<String>()) {
        let _ = parse(&text);
        let _ = parse(&format!("pprog 1\n{text}"));
    }

    #[test]
    fn damaged_texts_are_read_without_panic(
        program in arbitrary::program(),
        damage in proptest::collection::vec((any::<prop::sample::Index>(), "[ -~\n]{0,3}|\u{e9}"), 1..4),
    ) {
        let mut text: Vec<char> = print(&program).chars().collect();
        for (place, with) in damage {
            let at = place.index(text.len());
            let end = (at + 2).min(text.len());
            text.splice(at..end, with.chars());
        }
        let text: String = text.into_iter().collect();
        // What still reads is a program whose text reads the same.
        if let Ok((program, _)) = parse(&text) {
            let again = parse(&print(&program)).map(|(again, _)| again);
            prop_assert_eq!(again, Ok(program));
        }
    }
}
