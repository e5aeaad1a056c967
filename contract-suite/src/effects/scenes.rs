//! The states that an action and its resource can be in, and how to get there.

use std::time::Duration;

use coord_core::effects::{Action, Lease, PurgeRequest, Resolution};

use super::stage::{Seat, Stage, TTL, applied, on};
use crate::clause::{Verdict, VerdictContext};
use crate::fail;

/// What has become of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Past {
    Never,
    InFlight,
    /// Expired, and nobody has written it down.
    Expired,
    /// Released without a word, and nobody has written it down.
    Released,
    /// Marked by its attempt, which still holds the resource.
    Marked,
    /// Marked by its attempt, which then released the resource.
    MarkedReleased,
    /// Expired, and written down.
    Lapsed,
    /// Idle because its attempt was abandoned.
    Abandoned,
    /// Idle by a ruling while its attempt still holds the resource.
    RuledHeld,
    /// Idle by a ruling, its attempt's hold being over.
    Ruled,
    Completed,
    /// Completed by a ruling while its attempt still holds the resource.
    RuledApplied,
    Purged,
}

impl Past {
    pub(super) const ALL: [Past; 13] = [
        Past::Never,
        Past::InFlight,
        Past::Expired,
        Past::Released,
        Past::Marked,
        Past::MarkedReleased,
        Past::Lapsed,
        Past::Abandoned,
        Past::RuledHeld,
        Past::Ruled,
        Past::Completed,
        Past::RuledApplied,
        Past::Purged,
    ];

    /// Whether the action's own attempt holds the resource.
    pub(super) fn holds(self) -> bool {
        matches!(self, Past::InFlight | Past::Marked | Past::RuledHeld | Past::RuledApplied)
    }

    pub(super) fn is_completed(self) -> bool {
        matches!(self, Past::Completed | Past::RuledApplied | Past::Purged)
    }

    pub(super) fn is_uncertain(self) -> bool {
        matches!(self, Past::Marked | Past::MarkedReleased | Past::Lapsed)
    }

    /// Uncertain for the next one who asks.
    pub(super) fn is_lapsed(self) -> bool {
        matches!(self, Past::Expired | Past::Released)
    }
}

/// Brings an action, on a resource of its own or a shared one, to a state. Time may pass. Returns the lease of its attempt.
pub(super) async fn reach(
    stage: &Stage,
    seat: &Seat,
    action: &Action,
    past: Past,
) -> Result<Option<Lease>, Verdict> {
    let place = format!("bringing {:?} to {past:?}", action.key);
    if past == Past::Never {
        return Ok(None);
    }
    let lease = seat.grant(action).await.at(&place)?;
    match past {
        Past::Never | Past::InFlight => {}
        Past::Expired => stage.advance(TTL),
        Past::Released => seat.release(&lease).await.at(&place)?,
        Past::Marked => {
            seat.mark(&lease).await.at(&place)?;
        }
        Past::MarkedReleased => {
            seat.mark(&lease).await.at(&place)?;
            seat.release(&lease).await.at(&place)?;
        }
        Past::Lapsed => {
            stage.advance(TTL);
            seat.uncertain(action).await.at(&place)?;
        }
        Past::Abandoned => seat.abandon(&lease).await.at(&place)?,
        Past::RuledHeld | Past::RuledApplied | Past::Ruled => {
            let episode = seat.mark(&lease).await.at(&place)?;
            let ruling =
                if past == Past::RuledApplied { applied("as ruled") } else { Resolution::NotApplied };
            let ruled = seat.rule(action, episode, &ruling).await.at(&place)?;
            if !ruled.yours {
                fail!("saw the first ruling told as another one's: {place}");
            }
            if past == Past::Ruled {
                stage.advance(TTL);
            }
        }
        Past::Completed => {
            seat.finish(&lease, "done").await.at(&place)?;
        }
        Past::Purged => {
            seat.finish(&lease, "done").await.at(&place)?;
            seat.store.purge(&PurgeRequest::older_than(Duration::ZERO).limit(1_000)).await.at(&place)?;
        }
    }
    Ok(Some(lease))
}

/// Lets another key take the resource of this action, which must be free.
pub(super) async fn occupy(seat: &Seat, action: &Action, other: &str) -> Result<Lease, Verdict> {
    seat.grant(&on(other, action.resource.as_str())).await.at("letting another key take the resource")
}
