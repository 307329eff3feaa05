//! The examples of `docs/program.md` are programs and kernels as the page says.

use pipec_program::{text, verify};

const PAGE: &str = include_str!("../../../docs/program.md");

/// The contents of all fenced blocks of a kind.
fn blocks(kind: &str) -> Vec<&'static str> {
    let open = format!("```{kind}\n");
    PAGE.split(open.as_str())
        .skip(1)
        .filter_map(|rest| rest.split_once("```").map(|(block, _)| block))
        .collect()
}

#[test]
fn whole_programs_verify_and_are_printed_as_they_stand() {
    let programs = blocks("pprog");
    assert_eq!(programs.len(), 1);
    for block in programs {
        let (program, _) = text::parse(block).unwrap_or_else(|errors| panic!("{errors:?}"));
        assert_eq!(text::print(&program), block);
        verify(program).unwrap_or_else(|violations| panic!("{violations}"));
    }
}

#[test]
fn kernels_are_printed_as_they_stand() {
    let kernels = blocks("kernel");
    assert_eq!(kernels.len(), 2);
    for block in kernels {
        let head = "pprog 1\nprogram \"\"\nbatch { micro_batches 1, sequences 1, tokens 1, slices [1], stages 1, copies 1 }\n\
                    training { seed 0 }\nlearning_rate constant { rate 0.0 }\n\nfunction f0 \"\" {\n    ";
        let text = format!("{head}{block}}}\n");
        let (program, _) = text::parse(&text).unwrap_or_else(|errors| panic!("{errors:?}"));
        assert_eq!(text::print(&program), text);
    }
}

#[test]
fn every_instruction_line_of_the_tables_reads() {
    let lines: Vec<&str> = PAGE
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`').map(|(code, _)| code))
        .filter(|code| {
            let word = code.split(' ').next().unwrap_or("");
            matches!(word, "run" | "fill" | "copy" | "send" | "recv" | "reduce" | "wait")
        })
        .collect();
    assert_eq!(lines.len(), 7);
    let buffers: String =
        (0..13).map(|number| format!("buffer b{number} \"\" data d0.device[0..64]\n")).collect();
    let text = format!(
        "pprog 1\nprogram \"\"\nbatch {{ micro_batches 1, sequences 1, tokens 1, slices [1], stages 1, copies 1 }}\n\
         training {{ seed 0 }}\nlearning_rate constant {{ rate 0.0 }}\n\n{buffers}\nqueue q0 d0 compute {{\n    {}\n}}\n",
        lines.join("\n    ")
    );
    let (program, _) = text::parse(&text).unwrap_or_else(|errors| panic!("{errors:?}"));
    assert_eq!(text::print(&program), text);
}
