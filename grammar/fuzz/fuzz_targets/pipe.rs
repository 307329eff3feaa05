//! Any bytes as a `.pipe` file: parsing answers, and what it accepts is formatted to a fixed point.
//!
//! `RUSTC_BOOTSTRAP=1 cargo fuzz run -s none pipe -- -max_total_time=60` in the folder `grammar`.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pipe_grammar::diagnostic::SourceId;
use pipe_grammar::{format, parse_bytes};

fuzz_target!(|bytes: &[u8]| {
    let parsed = parse_bytes(SourceId::default(), bytes);
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    for diagnostic in &parsed.diagnostics {
        for label in &diagnostic.labels {
            assert!(text.get(label.span.range()).is_some(), "{diagnostic:?}");
        }
    }
    if let Ok(once) = format(text) {
        assert_eq!(format(&once).as_ref(), Ok(&once));
    }
});
