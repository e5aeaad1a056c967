//! The ways in which a side-effect store can be wrong, each with the clause that must notice it.

use super::wrong::wrong_judges;

wrong_judges! {
    /// A way in which [`OneKeyEffects`](super::OneKeyEffects) judges wrongly.
    WrongEffects:

    /// Every completion says that it may have been done twice.
    AlwaysMaybeTwice => "E01",
    /// The fence moves by two.
    FenceByTwo => "E01",
    /// A grant answers one fence and stores another.
    FenceAnsweredWrong => "E01",
    /// Intent and holder are written in two transactions.
    GrantInTwo => "E01",
    /// Contended is answered before uncertain.
    ContendedBeforeUncertain => "E02",
    /// Contended is answered before completed.
    ContendedBeforeCompleted => "E02",
    /// An action under way is told as contended.
    InFlightIsContended => "E02",
    /// An uncertain action whose attempt still holds the resource is told as under way.
    OwnHoldIsInFlight => "E02",
    /// The zeros at the end of a result are lost.
    ResultTrimmed => "E03",
    /// An empty result is taken for none.
    EmptyResultLost => "E03",
    /// A finished action fails because its result is too large.
    TooLargeIsInvalid => "E03",
    /// An acquire asserts nothing.
    AcquireUnasserted => "E04",
    /// Two actions may hold one resource.
    ResourceNotHeld => "E04",
    /// Nobody may look into a lapsed action before somebody has written it down.
    LapsedNotReconciled => "E05",
    /// An expired attempt is granted again.
    LapsedGrantedAgain => "E05",
    /// A released attempt is granted again.
    ReleasedGrantedAgain => "E05",
    /// A lapsed action is told as contended while another one holds its resource.
    LapsedIsContended => "E05",
    /// An acquire that meets a lapsed attempt does not write it down.
    LapseNotWritten => "E05",
    /// A read that meets a lapsed attempt does not write it down.
    GetLeavesLapsed => "E05",
    /// A slow renewal revives an attempt that was written down as lapsed.
    RenewRevives => "E05",
    /// An expired holder blocks other actions for ever.
    HolderNeverExpires => "E06",
    /// Taking over a resource withdraws the intent of its last holder.
    TakeoverFreesKey => "E06",
    /// The fence is counted by the action and not by the resource.
    FenceByHead => "E06",
    /// A completion forgets the fence.
    FenceForgotten => "E07",
    /// The fence restarts after a release.
    FenceRestarts => "E07",
    /// Purging forgets the fences.
    PurgeDropsFence => "E07",
    /// Forgetting a key forgets the fences.
    ForgetDropsFence => "E07",
    /// Forgetting a resource forgets its fence.
    ForgetWithoutFloor => "E07",
    /// A second result overwrites the first.
    SecondResultOverwrites => "E08",
    /// A repeated completion is refused.
    RepeatRefused => "E08",
    /// A repeated completion is written again.
    RepeatWrites => "E08",
    /// A late result that differs does not say that it may have been done twice.
    LateResultNotDoubted => "E08",
    /// When no other attempt fits, the oldest one is dropped, though it was ruled.
    OldestDropped => "E09.many",
    /// Abandoned attempts are remembered until no other one fits.
    AbandonedFillUp => "E09.many",
    /// A new attempt drops what is known of the earlier ones.
    RuledAttemptsDropped => "E09",
    /// A ruling leaves the doubt of late evidence.
    DoubtOutlivesRuling => "E09",
    /// A completion counts although a newer attempt was granted.
    CompleteAfterNewer => "E09",
    /// Late evidence stops a newer attempt that is under way.
    EvidenceStopsNewer => "E09",
    /// Late evidence leaves an idle action idle.
    EvidenceLeavesIdle => "E09",
    /// Late evidence of an uncertain action leaves its episode.
    EvidenceLeavesEpisode => "E09",
    /// Only a live attempt may complete.
    CompleteOnlyLive => "E10",
    /// An action that somebody has seen as uncertain cannot be completed.
    CompleteOnlyCertain => "E10",
    /// Any token is taken for the newest one.
    TokenNotCompared => "E11",
    /// The fence of a lease is not compared.
    LeaseFenceNotCompared => "E11",
    /// The key for downstream shows the token.
    TokenInDownstreamKey => "E11.secrets",
    /// The fifth piece of evidence and later ones count for nothing.
    FifthIgnored => "E12",
    /// Late results are dropped.
    EvidenceDropped => "E12",
    /// Of late results only length and digest are kept.
    EvidenceWithoutBytes => "E12",
    /// The same late result is kept each time that it comes.
    EvidenceTwice => "E12",
    /// An attempt that was ruled on may complete.
    CompleteAfterJudged => "E12",
    /// An attempt may complete although the resource was granted to another action since.
    CompleteAfterOther => "E12",
    /// Only a live attempt may mark.
    MarkOnlyLive => "E13",
    /// A mark withdraws the intent first and writes the doubt second.
    MarkInTwo => "E13",
    /// A repeated mark is a new episode.
    MarkAgainIsNew => "E13",
    /// A mark frees the resource.
    MarkFreesResource => "E13",
    /// A late mark of an old attempt marks the newer one.
    LateMarkMarks => "E14",
    /// A late release of an old attempt frees the newer one's resource.
    LateReleaseFrees => "E14",
    /// A late abandon of an old attempt frees the newer one's resource.
    LateAbandonFrees => "E14",
    /// A repeated release is refused.
    ReleaseTwiceRefused => "E15",
    /// What was marked cannot be abandoned by its own attempt.
    AbandonUncertainRefused => "E15",
    /// A release frees the action too.
    ReleaseFreesKey => "E15",
    /// An abandon leaves the resource held.
    AbandonKeepsResource => "E15",
    /// A completion leaves the resource held.
    CompleteKeepsResource => "E15",
    /// A renewal adds the ttl to the old end.
    RenewAdds => "E16",
    /// A renewal never shortens a lease.
    RenewNeverShortens => "E16",
    /// A renewal exactly at expiry is accepted.
    RenewAtExpiry => "E16",
    /// A renewal after expiry is accepted while nobody took over.
    RenewTooLate => "E16",
    /// A renewal takes the resource back from whoever was granted it since.
    RenewTakesOver => "E16",
    /// An uncertain action's hold is renewed.
    RenewUncertain => "E16",
    /// An uncertain action is granted again after a long time.
    UncertainExpires => "E17",
    /// Purging drops actions that are open.
    PurgeOpen => "E17",
    /// Somebody may look into an action that is under way.
    ReconcileInFlight => "E18",
    /// Two may look into one action.
    TwoReconcilers => "E18",
    /// The right to judge never expires.
    ClaimNeverExpires => "E18",
    /// The right to judge ends only when another one takes it.
    ClaimOutlives => "E18",
    /// Whether the right to judge is still held is not checked.
    OwnedIsNotChecked => "E18",
    /// Whether the right to judge is still held is checked in another transaction.
    ClaimCheckedBefore => "E18",
    /// The second ruling counts.
    SecondRulingCounts => "E19",
    /// Every ruling is told as the caller's own.
    EveryRulingIsYours => "E19",
    /// A ruling frees the resource.
    RulingFreesResource => "E19",
    /// A ruling moves the fence.
    RulingBumpsFence => "E19",
    /// A ruling is not recorded in the history.
    RulingNotRecorded => "E19",
    /// An allowed retry leaves no mark.
    RetryNotDoubted => "E19",
    /// Each attempt has a key of its own for downstream.
    DownstreamKeyPerAttempt => "E19",
    /// A completion asserts nothing.
    CompletionUnasserted => "E20",
    /// A ruling asserts nothing.
    RulingUnasserted => "E20",
    /// A ruling counts for the key, whatever episode it was made for.
    RulingByKey => "E21",
    /// Whoever has the right to judge may rule on any episode.
    StaleOwnedRuling => "E21",
    /// The episodes of a forgotten key are those of its next life.
    LivesAreOne => "E21",
    /// A mismatch is judged after completed.
    MismatchAfterCompleted => "E22",
    /// The resource is not compared.
    ResourceNotCompared => "E22",
    /// The fingerprint is not compared.
    FingerprintNotCompared => "E22",
    /// No fingerprint matches any.
    NoFingerprintMatches => "E22",
    /// A clean abandon settles an action that may have been done before.
    AbandonClearsDoubt => "E23",
    /// A completion says nothing of an earlier attempt that may have been done.
    CompletionClearsDoubt => "E23",
    /// Late evidence does not say that it may have been done.
    EvidenceNotDoubted => "E23",
    /// A ttl of zero is accepted.
    ZeroTtl => "E24",
    /// A ttl beyond the representable time ends at the last representable one.
    TtlSaturates => "E24",
    /// Holds end by the client's clock although the store has one.
    ClientClock => "E25",
    /// Without a store clock the taker waits no margin.
    NoMargin => "E25",
    /// An unknown write is told as one that did not happen.
    UnknownIsUnavailable => "E26",
    /// An unknown write is told as one that happened.
    UnknownIsApplied => "E26",
    /// An unknown write is judged afresh without looking for its own traces.
    UnknownIsJudgedAgain => "E26",
    /// A write that has not been seen is told as one that will never be.
    UnseenIsDead => "E26",
    /// A failing read after an unknown write is told as if nothing had been sent.
    GoneIsUnavailable => "E26",
    /// An acquire is told as granted because its write is found in a log.
    GrantedFromLog => "E26",
    /// An acquire's own attempt is told as granted although its time is over.
    OwnAttemptUnchecked => "E26",
    /// An acquire's own attempt that is found too late is left standing.
    OwnAttemptLeft => "E26",
    /// A lapsed attempt is listed as under way.
    LapsedListedInFlight => "E27.lists",
    /// Purging leaves the payload of evidence.
    PurgeKeepsEvidence => "E27",
    /// Payloads are purged before their time.
    PurgeEarly => "E27",
    /// Purging drops the verdict with the payload.
    PurgeDropsVerdict => "E27",
    /// An action that is open can be forgotten.
    ForgetOpen => "E27",
    /// A resource that is held can be forgotten.
    ForgetHeldResource => "E27",
    /// A list by age shows what is too young.
    ListIgnoresAge => "E27.lists",
    /// Key and resource are one name with a separator in it.
    NamesJoined => "E28",
    /// Names are trimmed.
    NamesTrimmed => "E28",
    /// Names are compared without case.
    NamesFolded => "E28",
    /// Combining characters are dropped from names.
    NamesNormalised => "E28",
    /// Names end at the first colon.
    NamesCut => "E28",
    /// Foreign bytes are read as an empty store.
    GarbageIsEmpty => "E29",
    /// The handle and not the store remembers the fences.
    FenceInHandle => "E07",
}
