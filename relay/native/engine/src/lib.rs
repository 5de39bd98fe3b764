//! The native engine of usher's relay, as Python sees it.
//!
//! `NativeEngine` runs the data threads; Python never holds its lock in their path, and they never take Python's. `Path`
//! is one forwarder without sockets and clock, for tests that compare it with the Python one.
#![deny(unsafe_code)]

mod door;
mod engine;
mod locals;
mod path;
mod shared;
mod siblings;
mod sys;
mod worker;

use pyo3::prelude::*;

/// How many threads this process may really use: its CPU affinity and its cgroup's quota count.
#[pyfunction]
fn usable_cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get)
}

#[pymodule]
fn usher_relay_native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<door::NativeEngine>()?;
    module.add_class::<path::Path>()?;
    module.add_function(wrap_pyfunction!(usable_cores, module)?)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))
}
