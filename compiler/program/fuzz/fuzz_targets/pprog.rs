//! Any bytes as a `.pprog` text: parsing answers, what it accepts prints and parses back, and verifying it answers;
//! what is proved also simulates.
//!
//! `RUSTC_BOOTSTRAP=1 cargo fuzz run -s none pprog -- -max_total_time=60` in the folder `compiler/program`.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pipec_program::text::{parse, print};
use pipec_program::{Costs, simulate, verify};

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok((program, _)) = parse(text) else { return };
    let printed = print(&program);
    let again = parse(&printed).map(|(program, _)| print(&program));
    assert_eq!(again.as_ref(), Ok(&printed));
    if let Ok(verified) = verify(program) {
        let timeline = simulate::simulate(&verified, &Costs::roofline(&verified));
        assert!(timeline.events().iter().all(|event| event.start <= event.end));
    }
});
