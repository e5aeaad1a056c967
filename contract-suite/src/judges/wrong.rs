//! The ways in which a board can be wrong, each with the clause that must notice it, and how such lists are made.

macro_rules! wrong_judges {
    (#[doc = $about:literal] $judge:ident: $($(#[doc = $what:literal])+ $name:ident => $clause:literal,)+) => {
        #[doc = $about]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum $judge {
            $($(#[doc = $what])+ $name,)+
        }

        impl $judge {
            /// All of them.
            pub const ALL: &'static [$judge] = &[$($judge::$name),+];

            /// The clause that must fail on it.
            #[must_use]
            pub fn clause(self) -> &'static str {
                match self {
                    $($judge::$name => $clause,)+
                }
            }

            /// What it does wrong, in one sentence.
            #[must_use]
            pub fn what(self) -> &'static str {
                match self {
                    $($judge::$name => concat!($($what),+).trim_ascii(),)+
                }
            }
        }
    };
}
pub(super) use wrong_judges;

wrong_judges! {
    /// A way in which [`OneKeyBoard`](super::OneKeyBoard) judges wrongly.
    WrongJudge:

    /// A claim by the agent that holds the task is answered with the standing lease.
    SameNameOwns => "T01",
    /// Dependencies are judged before the state of the task.
    BlockedBeforeTerminal => "T01",
    /// Dependencies are judged before the time from which on the task may be claimed.
    BlockedBeforeNotYet => "T01",
    /// A task is given before its time.
    GivenBeforeItsTime => "T01",
    /// A task is not given exactly at its time.
    NotYetAtItsTime => "T01",
    /// Only the first of the dependencies that block is named.
    BlockedNamesOne => "T01",
    /// A failed or cancelled dependency is told as one that is still pending.
    FailedIsPending => "T01",
    /// A failed or cancelled dependency counts as done.
    FailedCountsAsDone => "T01",
    /// An unknown task is told as open and empty.
    UnknownIsInvalid => "T01",
    /// A claim takes two transactions.
    ClaimInTwo => "T02",
    /// A claim does not move the seq.
    ClaimKeepsSeq => "T02",
    /// The end of a lease is rounded to whole seconds.
    UntilRounded => "T02",
    /// The claim answers one fence and stores another.
    FenceAnsweredWrong => "T02",
    /// A claim asserts nothing.
    ClaimUnasserted => "T03",
    /// The fence moves by two.
    FenceByTwo => "T03",
    /// A racer that lost is told of a conflict and not of the winner.
    ConflictAtOnce => "T03",
    /// A racer that lost is given the winner's lease.
    LoserGetsLease => "T03",
    /// A token is compared by the name of the agent that it was given to.
    TokenByAgent => "T04",
    /// A takeover hands out the old token.
    TakeoverKeepsToken => "T04",
    /// A takeover keeps the fence.
    TakeoverKeepsFence => "T04",
    /// A lease never expires.
    NeverExpires => "T04",
    /// A lease lives until after its end.
    ExpiresOneLater => "T04",
    /// The old holder may still fail a task that was taken over.
    StaleFail => "T04",
    /// A release with any token is accepted.
    ReleaseByAnybody => "T05",
    /// The fence restarts after a release.
    FenceRestarts => "T05",
    /// A released task keeps its owner.
    ReleaseKeepsOwner => "T05",
    /// The holder may not complete after expiry, though nobody took over.
    CompleteTooLate => "T06",
    /// A done dependency counts only once its lease would have expired.
    DoneCountsLate => "T06",
    /// A completion with any token is accepted.
    CompleteByAnybody => "T06",
    /// A later outcome replaces the first.
    OutcomeOverwritten => "T07",
    /// The last token completes a task that it has released.
    CompleteAfterRelease => "T07",
    /// The token of a completion releases as well.
    ReleaseAfterComplete => "T07",
    /// Repeating a verb loses the lease.
    RepeatIsLost => "T07",
    /// Repeating a verb is a transition again.
    RepeatMovesSeq => "T07",
    /// A release is answered again though the task was claimed again.
    ReleaseRemembered => "T07",
    /// A repeated completion is answered from the log of the last operations only.
    CompleteForgotten => "T07",
    /// Any token is told the outcome of a done task.
    OutcomeToAnybody => "T07",
    /// A renewal exactly at expiry is accepted.
    RenewAtExpiry => "T08",
    /// A renewal after expiry is accepted while nobody took over.
    RenewTooLate => "T08",
    /// A renewal with any token is accepted.
    RenewByAnybody => "T08",
    /// A renewal gives a new token.
    RenewNewToken => "T08",
    /// A renewal adds the ttl to the old end.
    RenewAdds => "T08",
    /// A renewal never shortens a lease.
    RenewNeverShortens => "T08",
    /// A refused renewal still moves the task.
    RefusedRenewMoves => "T08",
    /// A ttl of zero is accepted.
    ZeroTtl => "T09",
    /// A ttl beyond the representable time ends at the last representable one.
    TtlSaturates => "T09",
    /// A lease without a ttl ends after an hour.
    ForeverIsAnHour => "T09",
    /// A renewal by zero is accepted.
    RenewZero => "T09",
    /// A claim that finds itself blocked writes back what it has read.
    LostCompletion => "T10",
    /// A claim that was rejected once is judged on the dependencies that it first read.
    OldDefinition => "T11",
    /// The listing is read in two halves.
    TornList => "T12",
    /// The listing ends after a thousand tasks.
    ListCut => "T12",
    /// A listing of more than 9,999 tasks leaves the rest out.
    ListNeverTooLarge => "T12",
    /// The listing is in the order of creation.
    ListUnsorted => "T12",
    /// A check believes what it has read at several instants.
    CheckBelievesPages => "T12",
    /// A check of a board that is too large to be listed refuses, as the listing does.
    CheckRefusesLarge => "T12",
    /// A page begins with the task after which it was to begin.
    PageRepeatsLast => "T12.pages",
    /// A page that names a task that is gone begins one too late.
    PageSkipsAfterGone => "T12.pages",
    /// A page that is full names a next one, also if that is empty.
    PageNextOfFull => "T12.pages",
    /// The last page is lost if it is not full.
    PageLosesTail => "T12.pages",
    /// A page is in the order of creation.
    PageUnsorted => "T12.pages",
    /// A page is read in two halves.
    TornPage => "T12.pages",
    /// A page of no task, or of more than a thousand, is given.
    PageOfAnySize => "T12.pages",
    /// Foreign bytes are read as an empty board.
    GarbageIsEmpty => "T13",
    /// A renewal does not move the seq.
    RenewKeepsSeq => "T14",
    /// New dependencies do not move the seq.
    SetDepsKeepsSeq => "T14",
    /// The seq restarts when an id is added again.
    SeqRestarts => "T14",
    /// A cancelled task keeps its seq.
    CancelKeepsSeq => "T14",
    /// Tokens come from a small space.
    SmallTokens => "T15",
    /// The token of a claim that lost is stored.
    LoserStored => "T15",
    /// An id with another definition is overwritten.
    AddOverwrites => "T16",
    /// Another definition is told as the same.
    AnyDefinitionExisted => "T16",
    /// An unknown dependency is accepted.
    UnknownDepAccepted => "T16",
    /// A cycle is accepted.
    CycleAccepted => "T16",
    /// A cycle is named by one task.
    CycleWithoutPath => "T16",
    /// Edges are written without an assert.
    EdgesUnasserted => "T16",
    /// The limit of dependencies is not enforced.
    AnyNumberOfDeps => "T16",
    /// A plan is added in two halves.
    PlanInHalves => "T17",
    /// A plan that is added again is refused.
    PlanNotResumable => "T17",
    /// The same definition again moves the seq.
    ExistedMovesSeq => "T17",
    /// A plan is added in the order of its names.
    PlanByName => "T17",
    /// New dependencies unclaim a claimed task.
    SetDepsUnclaims => "T18",
    /// New dependencies are accepted once the lease has expired.
    SetDepsExpired => "T18",
    /// A held task is removed.
    RemoveHeld => "T18",
    /// A task is removed once its lease has expired.
    RemoveExpired => "T18",
    /// New dependencies of a done task are accepted.
    SetDepsTerminal => "T18",
    /// Finished tasks do not count as dependents.
    FinishedDependents => "T19",
    /// Removal forgets the fence.
    FenceForgotten => "T19",
    /// The handle and not the store remembers the fences of removed tasks.
    FenceInHandle => "T19",
    /// A task fails for good although it has attempts left.
    FailIgnoresRetries => "T20",
    /// A task that failed may be tried for ever.
    RetriesForEver => "T20",
    /// A task that failed is to be had again at once.
    RestIsNothing => "T20",
    /// Tasks that failed together come back together.
    RestNotSpread => "T20",
    /// The rest is longer than the longest.
    RestTooLong => "T20",
    /// The rest is shorter than half of what it may be.
    RestTooShort => "T20",
    /// The rest does not grow.
    RestNotDoubled => "T20",
    /// A release counts as an attempt.
    ReleaseCounts => "T20",
    /// A task may be taken over any number of times.
    TakeoverNotCounted => "T20",
    /// A task without attempts left is refused, and stays as it is.
    CapWritesNothing => "T20",
    /// A reopened task keeps its attempts.
    ReopenKeepsAttempts => "T20",
    /// A failed dependency is explained as one that is still pending.
    ExplainHidesFailed => "T21",
    /// A task that waits for others is explained as one that can be claimed.
    ExplainForgetsDeps => "T21",
    /// Whoever waits asks five times a second, for ever.
    WaitStorms => "T32",
    /// Who waits for the first of several tasks waits for all of them.
    WaitAnyMeansAll => "T32",
    /// A board on which somebody holds a task is taken for idle.
    WaitIdleForgetsHeld => "T32",
    /// A board on which a task rests is taken for idle.
    WaitIdleForgetsResting => "T32",
    /// A board on which a task waits for what has failed is never taken for idle.
    WaitIdleCountsBlocked => "T32",
    /// What can be claimed and what is held are looked at one after the other, and others work in between.
    WaitIdleInPieces => "T32",
    /// Whoever waits does not see that a task was cancelled.
    WaitMissesCancelled => "T32",
    /// Whoever waits for anything to be ready does not see what becomes due.
    WaitMissesDue => "T32",
    /// Whoever looks for a task gets the first in line, whatever its priority.
    NextIgnoresPriority => "T23",
    /// Tasks of one priority are handed out by name.
    NextByName => "T23",
    /// The labels of a filter are not looked at.
    NextIgnoresLabels => "T23",
    /// A lease that is over is not found by whoever looks for a task.
    NextSkipsExpired => "T23",
    /// A task that was given back is not found any more.
    NextLosesReleased => "T23",
    /// A task that is held is handed out once more to whoever looks for one.
    NextTwice => "T23",
    /// Every caller that loses a race goes without.
    NextGivesUp => "T23",
    /// Cancelling leaves the token valid.
    CancelKeepsToken => "T22",
    /// A revoked token still completes.
    RevokeKeepsToken => "T22",
    /// Revoking does not look at the fence.
    RevokeAnyFence => "T22",
    /// A cancelled task keeps its owner.
    CancelKeepsOwner => "T27",
    /// A done task can be reopened.
    ReopenDone => "T27",
    /// Removal does not look at dependents that are open.
    RemoveDangles => "T27",
    /// Ids are trimmed.
    IdsTrimmed => "T28",
    /// Ids are compared without case.
    IdsFolded => "T28",
    /// Combining characters are dropped from ids.
    IdsNormalised => "T28",
    /// Ids are percent-decoded.
    IdsDecoded => "T28",
    /// Ids end at the first colon.
    IdsCut => "T28",
    /// Leases end by the client's clock although the store has one.
    ClientClock => "T29",
    /// Without a store clock the taker waits no margin.
    NoMargin => "T29",
    /// An unknown write is told as one that did not happen.
    UnknownIsUnavailable => "T30",
    /// An unknown write is told as one that happened.
    UnknownIsApplied => "T30",
    /// An unknown write is judged afresh without looking for its own traces.
    UnknownIsJudgedAgain => "T30",
    /// An unknown claim is resolved by the owner's name.
    UnknownByOwner => "T30",
    /// A write that has not been seen is told as one that will never be.
    UnseenIsDead => "T30",
    /// A failing read after an unknown write is told as if nothing had been sent.
    GoneIsUnavailable => "T30",
    /// A claim that is sent again does not keep any more what it rests on from being reopened.
    PinForgottenOnResend => "T30",
    /// A reopen that is judged again goes by what had begun when it was judged first.
    PinOfFirstLook => "T30",
    /// What an unknown write would have skipped is skipped by the next one, though it was edited since.
    SkipRunAgain => "T30",
    /// A lost reply of reopen is run again on a task that was claimed since.
    ReopenRunAgain => "T34",
    /// A lost reply of progress is told again over a newer word.
    ProgressRunAgain => "T34",
    /// A lost reply of archive is run again on what was added since.
    ArchiveRunAgain => "T34",
    /// A lost reply of remove is run again on whatever has the id.
    RemoveRunAgain => "T34",
    /// A lost reply of set_deps is run again over a later edit.
    SetDepsRunAgain => "T34",
    /// A lost reply of add is run again though the task was removed since.
    AddRunAgain => "T34",
    /// A lost reply of cancel is run again on a task that was reopened since.
    CancelRunAgain => "T34",
    /// The title of a claimed task shows its token.
    TokenInTitle => "T35",
    /// The owner of a claimed task shows its token.
    TokenInOwner => "T35",
    /// The outcome of a done task shows the token that completed it.
    TokenInOutcome => "T35",
    /// Whoever is told that a task is taken is told its token.
    TokenInTaken => "T35",
    /// The labels of a claimed task show the request id.
    RequestInLabels => "T35",
    /// A request id is matched without the agent.
    RequestOfAnybody => "T36",
    /// The request id of an expired lease is honoured.
    RequestOutlivesLease => "T36",
    /// A request id that was seen is refused.
    RequestIsTaken => "T36",
    /// A request id matches its lease although that was released.
    RequestAfterRelease => "T36",
    /// The same request moves the end of the lease.
    RequestRenews => "T36",
    /// Every dependency must be done, whatever its rule.
    RulesIgnored => "T37",
    /// The rule finished is satisfied by done only.
    FinishedIsDone => "T37",
    /// The rule finished is not satisfied by a cancelled task.
    FinishedNotCancelled => "T37",
    /// The rule finished can never be satisfied by a skipped task.
    FinishedNotSkipped => "T37",
    /// The rule failed is satisfied by a cancelled task.
    FailedTakesCancelled => "T37",
    /// The rule failed is satisfied by a done task.
    FailedTakesDone => "T37",
    /// A cancelled task skips what waits for its failure, though it may be reopened and fail.
    CancelSkips => "T37",
    /// A cancelled task is told to what waits for its failure as one that is still pending.
    CancelledIsPending => "T37",
    /// A failed task skips what waits for it to be done, though it may be reopened.
    FailureSkips => "T37",
    /// A skipped task counts as done.
    SkippedCountsAsDone => "T37",
    /// What can never begin is blocked for ever.
    ImpossibleBlocks => "T37",
    /// The first dependency that is impossible skips the task, though another one is not settled.
    SkippedByFirst => "T37.mixed",
    /// A dependency that is impossible is not named while another one is not settled.
    ImpossibleNotNamed => "T37.mixed",
    /// The rules of dependencies are not shown.
    RulesNotShown => "T37.definition",
    /// The same definition but for a rule is told as the same.
    AnyRuleExisted => "T37.definition",
    /// New dependencies must all be done, whatever their rule.
    SetDepsForgetsRules => "T37.definition",
    /// New dependencies keep the rules of those of them that were there before.
    SetDepsKeepsRules => "T37.definition",
    /// Any number of dependencies may have a rule.
    AnyNumberOfRules => "T37.definition",
    /// A cycle is accepted if its last edge has another rule than done.
    RuledCycleAccepted => "T37.definition",
    /// Dependents by another rule than done do not keep a task from being removed.
    RuledNotDependents => "T37.definition",
    /// A skipped task can be cancelled.
    SkippedCancelled => "T38",
    /// A skipped task can be reopened.
    SkippedReopened => "T38",
    /// New dependencies of a skipped task are accepted.
    SkippedEdited => "T38",
    /// A skipped task is told a claimer as one that is blocked.
    SkippedClaimed => "T38",
    /// A task that is skipped keeps its seq.
    SkipKeepsSeq => "T38",
    /// A task that is skipped forgets its fence.
    SkipForgetsFence => "T38",
    /// What waits for a skipped task to be done is blocked for ever.
    SkipStops => "T38.chain",
    /// What a task rests on can be reopened.
    ReopenIgnoresPin => "T39",
    /// A task can be reopened only if nobody names it by another rule than done, begun or not.
    PinnedByName => "T39",
    /// A refused reopen names the task itself.
    PinNamesItself => "T39",
    /// A refused reopen names the last one that has begun, and moves with each.
    PinNamesLast => "T39",
    /// A task that cannot be reopened any more is explained as any other that has ended.
    ExplainForgetsPin => "T39",
    /// Only the first of the ends on which a task rests is kept.
    PinsOne => "T39",
    /// Only what a task rests on by the rule failed is kept.
    PinsByFailedOnly => "T39",
    /// A cancelled task is reopened although another one rests on that.
    PinsFailedOnly => "T39",
    /// Only what a task rests on when it begins for the first time is kept.
    PinsFirstClaimOnly => "T39",
    /// A claim that is refused keeps what it would rest on from being reopened.
    PinThoughBlocked => "T39",
    /// What a task rests on can be reopened once it is released.
    PinUntilReleased => "T39",
    /// What a task rests on can be reopened once it is done.
    PinUntilDone => "T39",
    /// What a task rests on can be reopened once it has failed.
    PinUntilFailed => "T39",
    /// What a task rests on can be reopened once it is cancelled.
    PinUntilCancelled => "T39",
    /// What a task rests on can be reopened once it is removed.
    PinUntilRemoved => "T39",
    /// What a task rested on can be reopened once it names others.
    PinUntilEdited => "T39",
    /// What a removed task has rested on can never be removed.
    PinnedNotRemoved => "T39",
    /// A claim that was rejected once is judged on the ends that it first read.
    EndsOfBefore => "T39.race",
    /// A reopen is judged on what rested on the task before.
    PinOfBefore => "T39.race",
    /// What a task rests on is kept by a transaction after its claim.
    PinInTwo => "T39.race",
    /// What a task rests on is kept by a transaction before its claim.
    PinBefore => "T40",
    /// A claim that takes over does not tell from whom.
    TakeoverUntold => "T41",
    /// A failure with attempts left is not told.
    RetriesUntold => "T41",
    /// That a task is skipped is not told.
    SkipUntold => "T41",
    /// Renewals are told, and push out what matters.
    RenewalsTold => "T41",
    /// What is answered again is told again.
    RepeatToldTwice => "T41",
    /// The history of a task grows for ever.
    HistoryGrows => "T41",
    /// The history of a removed task goes on with the next one of its name.
    HistoryOutlivesTask => "T41",
    /// The history of a task shows its tokens.
    TokenInHistory => "T41",
    /// Any token tells the progress of a claimed task.
    ProgressByAnybody => "T42",
    /// A holder whose lease is over still tells its progress.
    ProgressTooLate => "T42",
    /// The first progress of a claim stays.
    ProgressKeepsFirst => "T42",
    /// A claim begins with the progress of the last one.
    ProgressOutlivesClaim => "T42",
    /// Progress moves the seq.
    ProgressIsChange => "T42",
    /// Progress is told without an assert, and so an old word arrives late.
    ProgressUnasserted => "T42",
    /// Progress of any length is kept.
    ProgressUnbounded => "T42",
    /// Whatever is finished is archived, however young.
    ArchiveIgnoresAge => "T43",
    /// What failed is archived unasked.
    ArchiveTakesFailed => "T43",
    /// Asked for what failed, it takes what was cancelled as well.
    ArchiveFailedTakesCancelled => "T43",
    /// What was skipped is never archived.
    ArchiveKeepsSkipped => "T43",
    /// What a skipped task names is never archived.
    ArchiveKeepsSkippedsNeeds => "T43",
    /// What a cancelled task depends on is archived, which may be reopened yet.
    ArchiveTakesCancelledsNeeds => "T43",
    /// What an archived task has rested on can be reopened.
    ArchiveUnpins => "T43",
    /// What open tasks depend on is archived.
    ArchiveTakesNeeded => "T43",
    /// What a failed task depends on is archived, which may be reopened yet.
    ArchiveTakesFailedsNeeds => "T43",
    /// What a finished task names is never archived, so a chain never goes.
    ArchiveKeepsNamed => "T43",
    /// The name of an archived task stays where it was named.
    ArchiveDangles => "T43",
    /// A task that named an archived one is no more what it was added as.
    ArchiveRedefines => "T43",
    /// A task that named an archived one counts as just touched.
    ArchiveRejuvenates => "T43",
    /// The fence of an archived task begins anew.
    ArchiveForgetsFence => "T43",
    /// Archiving asserts nothing.
    ArchiveUnasserted => "T43",
    /// The failure that uses up the attempts of a task makes it done.
    GivenUpIsDone => "T50",
    /// A task that can never begin is cancelled.
    SkippedIsCancelled => "T50.processes",
    /// Whoever waits asks twenty times a second, for ever.
    WaitHurries => "T51",
}
