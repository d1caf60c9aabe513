//! Ports of the functions and the fetcher, as traits: objects, a table, an invoker, the coordinator,
//! a clock. In-memory versions serve tests and simulation; one conformance suite runs over every
//! implementation.

mod buffers;
mod call_version;
mod clock;
pub mod conformance;
mod coordinator;
mod features;
mod invoker;
pub mod limits;
pub mod memory;
mod metrics;
mod objects;
mod pace;
mod patience;
mod table;

pub use buffers::{BufferPages, BufferPool, keep_buffer, let_go_buffer, unused_buffers};
pub use call_version::{CallTransport, CallVersion};
pub use clock::{Clock, SystemClock, chance, outlast, time_run};
pub use coordinator::{CallError, Coordinator, call_with_retry, encode_call};
pub use features::without_feature;
pub use invoker::{InvokeError, InvokeOutcome, Invoker};
pub use metrics::{FunctionMetrics, MetricUnit, MetricValue};
pub use objects::{
    ChangeStamp, MAX_GET_BYTES, ObjectError, ObjectInfo, ObjectPath, ObjectStore, PutOutcome,
    get_long_range,
};
pub use pace::{PrefixRead, PrefixReadLimits};
pub use patience::ReadTimeout;
pub use table::{ItemKey, Table, TableError, TableItem, WriteOutcome};
