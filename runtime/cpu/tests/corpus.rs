//! The shared kernel corpus, in every instruction set of this processor and on several threads.

use pipec_cpu::{CpuDevice, InstructionSet};
use pipec_runtime::corpus::cases;

#[test]
fn agrees_with_the_reference_device() {
    for set in InstructionSet::available() {
        for threads in [1, 3] {
            let mut device = CpuDevice::with_instruction_set(threads, set).expect("a device");
            let failures: Vec<String> =
                cases().iter().filter_map(|case| case.check(&mut device).err()).collect();
            assert!(failures.is_empty(), "{} on {threads} threads:\n{}", set.name(), failures.join("\n"));
        }
    }
}
