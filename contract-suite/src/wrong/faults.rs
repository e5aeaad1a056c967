//! Wrong in how faults are told, survived, or noticed.

use std::sync::Arc;
use std::time::Duration;

use coord_core::{Backend, BackendError, ErrorKind, Operation};

use crate::harness::{Harness, Misconfiguration};
use crate::sim::{Manner, Settings, Sync};

use super::Wrong;
use super::bent::{Bent, Flaw, Opening};
use super::flaw::*;

macro_rules! wrong {
    ($id:literal, $clause:literal, $what:literal, $harness:expr) => {
        Wrong { id: $id, what: $what, clause: $clause, also: &[], harness: || $harness }
    };
}

pub(super) const WRONG: &[Wrong] = &[
    wrong!(
        "F01",
        "B40",
        "a transaction that was not sent is answered as applied",
        bent(|| Arc::new(Hopeful))
    ),
    wrong!("F02", "B40", "a snapshot that was not sent is answered as absent", bent(|| Arc::new(Blank))),
    wrong!("F03", "B40", "a listing that was not sent is answered as empty", bent(|| Arc::new(Empty))),
    wrong!(
        "F04",
        "B40",
        "a read of which nothing came back is indeterminate",
        bent(|| Arc::new(DoubtfulReads))
    ),
    wrong!("F05", "B40", "a request that was not sent is a wrong setting", bent(|| Arc::new(WrongKind))),
    wrong!("F06", "B40", "a transaction is sent until it is answered", bent(|| Arc::new(Stubborn))),
    wrong!("M64", "B41", "retried inside after a lost reply", bent(|| Arc::new(RetriesOnce))),
    wrong!("M66", "B41", "unknown is answered as rejected", bent(|| Arc::new(Pessimist))),
    wrong!("F11", "B41", "a lost reply is reported as unavailable", bent(|| Arc::new(LostIsUnavailable))),
    wrong!(
        "F12",
        "B41",
        "sent again in the background after a lost reply",
        bent(|| Arc::new(BackgroundRetry))
    ),
    wrong!("F13", "B41", "a retry of the caller mints nothing new", bent(|| Arc::new(MintsFromContent))),
    wrong!(
        "F14",
        "B41",
        "a lost reply is made up for by reading the values",
        bent(|| Arc::new(ReadsInstead))
    ),
    wrong!("F15", "B41", "a lost reply is answered as applied", bent(|| Arc::new(Hopeful))),
    wrong!(
        "F21",
        "B42",
        "acknowledged before it is on disk",
        careless(Settings { sync: Sync::Never, ..Settings::RIGHT })
    ),
    wrong!(
        "F22",
        "B42",
        "on disk now and then",
        careless(Settings { sync: Sync::NowAndThen, ..Settings::RIGHT })
    ),
    wrong!("F81", "B51", "unknown is answered as rejected", bent(|| Arc::new(Pessimist))),
    wrong!("F82", "B51", "a lost reply is reported as unavailable", bent(|| Arc::new(LostIsUnavailable))),
    wrong!("F83", "B51", "a lost reply is answered as applied", bent(|| Arc::new(Hopeful))),
    wrong!("F84", "B51", "retried inside after a lost reply", bent(|| Arc::new(RetriesOnce))),
    wrong!("F85", "B51", "a snapshot that was lost is answered as absent", bent(|| Arc::new(Blank))),
    wrong!("F86", "B51", "a listing that was lost is answered as empty", bent(|| Arc::new(Empty))),
    wrong!("F23", "B42", "a handle that never recovers", bent(|| Arc::new(Sulks::default()))),
    wrong!(
        "F24",
        "B42",
        "what could not be sent is kept and sent after the restart",
        bent(|| Arc::new(Outbox::default()))
    ),
    wrong!(
        "F25",
        "B42",
        "incarnations are counted from the start of the server",
        bent(|| Arc::new(CountsFromStart))
    ),
    wrong!(
        "F26",
        "B42",
        "reads of a dead server are answered from a cache",
        bent(|| Arc::new(Cache::default()))
    ),
    wrong!(
        "F27",
        "B42",
        "listings of a dead server are answered from a cache",
        bent(|| Arc::new(ListingCache::default()))
    ),
    wrong!(
        "F28",
        "B42",
        "what was on its way when the server died is on disk in part",
        careless(Settings { sync: Sync::InPart, ..Settings::RIGHT })
    ),
    wrong!(
        "F29",
        "B42",
        "a dead server is a wrong setting when a handle is opened",
        opening(outage_is_config)
    ),
    wrong!("F31", "B43", "waits for ever", impatient(Duration::from_secs(3_600), || Arc::new(Right))),
    wrong!("F32", "B43", "a timeout is reported as unavailable", bent(|| Arc::new(TimeoutIsUnavailable))),
    wrong!("F33", "B43", "retried inside after a timeout", impatient(SHORT, || Arc::new(RetriesTimeout))),
    wrong!(
        "F34",
        "B43",
        "sent until answered, and then answered rejected although it happened",
        impatient(SHORT, || Arc::new(Stubborn))
    ),
    wrong!(
        "F35",
        "B43",
        "a late reply is taken for the answer to the next request",
        bent(|| Arc::new(Shifted::default()))
    ),
    wrong!("F36", "B43", "a timeout is answered as rejected", bent(|| Arc::new(TimeoutIsRejected))),
    wrong!("F37", "B43", "a read that timed out is indeterminate", bent(|| Arc::new(DoubtfulReads))),
    wrong!(
        "F38",
        "B43",
        "a paused server is a wrong setting when a handle is opened",
        opening(outage_is_config)
    ),
    wrong!("F41", "B44", "a script that the server has dropped is surfaced", unprepared(|| Arc::new(Right))),
    wrong!(
        "F42",
        "B44",
        "a transaction whose script was dropped is rejected",
        unprepared(|| Arc::new(UnpreparedIsRejected))
    ),
    wrong!(
        "F43",
        "B44",
        "a script that was dropped is loaded and then run twice",
        bent(|| Arc::new(RunsTwice::default()))
    ),
    wrong!(
        "F44",
        "B44",
        "a snapshot whose script was dropped finds nothing",
        bent(|| Arc::new(FlushedIsBlank::default()))
    ),
    wrong!("F51", "B45", "foreign content is read as missing", bent(|| Arc::new(ForeignIsMissing))),
    wrong!("F52", "B45", "foreign content is overwritten", bent(|| Arc::new(Overwrites))),
    wrong!("F53", "B45", "foreign content is deleted", bent(|| Arc::new(DeletesForeign))),
    wrong!("F54", "B45", "foreign content is an outage", bent(|| Arc::new(ForeignIsOutage))),
    wrong!(
        "F55",
        "B45",
        "a transaction on foreign content is rejected",
        bent(|| Arc::new(ForeignIsRejected))
    ),
    wrong!(
        "F56",
        "B45",
        "what is asserted missing holds over foreign content",
        bent(|| Arc::new(ForeignHolds))
    ),
    wrong!("F61", "B46", "no setting is looked at", careless(Settings::RIGHT)),
    wrong!(
        "F62",
        "B46",
        "a wrong setting is an outage",
        opening(|_, opened| opened.map_err(|_| error(ErrorKind::Unavailable, Operation::Connect)))
    ),
    wrong!(
        "F63",
        "B46",
        "an evicting server is accepted",
        opening(|fault, opened| accept(fault == Some(Misconfiguration::Evicting), opened))
    ),
    wrong!(
        "F64",
        "B46",
        "a server that syncs now and then is accepted",
        opening(|fault, opened| accept(fault == Some(Misconfiguration::LazySync), opened))
    ),
    wrong!(
        "F65",
        "B46",
        "a replica is accepted",
        opening(|fault, opened| accept(fault == Some(Misconfiguration::ReadOnly), opened))
    ),
    wrong!(
        "F71",
        "B48",
        "a pool that never gets back the place of a call that failed",
        bent(|| Arc::new(LeakyPool::default()))
    ),
    wrong!(
        "F72",
        "B48",
        "a pool that never gets back the place of a call that was dropped",
        bent(|| Arc::new(DropLeak::default()))
    ),
    wrong!(
        "F73",
        "B48",
        "the wait before the next try doubles with every error, without a limit",
        bent(|| Arc::new(Doubles::default()))
    ),
    wrong!("F74", "B48", "a server that was gone twice is given up", bent(|| Arc::new(GivesUp::default()))),
];

/// Shorter than some of the pauses of the server.
const SHORT: Duration = Duration::from_millis(200);

fn bent(flaw: fn() -> Arc<dyn Flaw>) -> Arc<dyn Harness> {
    Bent::with(Settings::RIGHT, Manner::RIGHT, flaw, |_, opened| opened)
}

fn careless(settings: Settings) -> Arc<dyn Harness> {
    let manner = Manner { checks_settings: false, ..Manner::RIGHT };
    Bent::with(settings, manner, || Arc::new(Right), |_, opened| opened)
}

fn impatient(deadline: Duration, flaw: fn() -> Arc<dyn Flaw>) -> Arc<dyn Harness> {
    Bent::with(Settings::RIGHT, Manner { deadline, ..Manner::RIGHT }, flaw, |_, opened| opened)
}

fn unprepared(flaw: fn() -> Arc<dyn Flaw>) -> Arc<dyn Harness> {
    Bent::with(Settings::RIGHT, Manner { prepares_again: false, ..Manner::RIGHT }, flaw, |_, opened| opened)
}

fn opening(opening: Opening) -> Arc<dyn Harness> {
    Bent::with(Settings::RIGHT, Manner::RIGHT, || Arc::new(Right), opening)
}

fn outage_is_config(
    fault: Option<Misconfiguration>,
    opened: Result<Arc<dyn Backend>, BackendError>,
) -> Result<Arc<dyn Backend>, BackendError> {
    match opened {
        Err(_) if fault.is_none() => Err(error(ErrorKind::Config, Operation::Connect)),
        opened => opened,
    }
}

fn accept(
    accepted: bool,
    opened: Result<Arc<dyn Backend>, BackendError>,
) -> Result<Arc<dyn Backend>, BackendError> {
    if accepted {
        let store = coord_memory::MemoryStore::new();
        return Ok(Arc::new(store.open(&coord_core::Namespace::new("accepted")?)));
    }
    opened
}
