//! Notifications that are pending for sessions that LISTEN, by database. Pure; `shmem/notify.rs` keeps it in shared
//! memory.
//!
//! A commit adds its topics here and wakes its database's *notifier*, a process that sends one NOTIFY for
//! each topic it finds here. So a commit neither waits nor fails because of it, and costs the same however many
//! listen. Without room for a topic this says so: then the listeners of all topics are told.

/// No time at which something is due.
const NEVER: i64 = i64::MAX;
/// Databases whose listeners can be told at a time.
const NOTIFIERS: usize = 16;
/// Topics pending at a time, of all databases.
const TOPICS: usize = 64;
/// A notifier that has not begun so long after it was asked for, in microseconds, never will.
const PATIENCE: i64 = 10_000_000;
/// Longest name of a topic.
const NAME: usize = 255;
const NOBODY: u32 = u32::MAX;

/// A topic of a database; database 0: none.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Topic {
    database: u32,
    length: u8,
    name: [u8; NAME],
}

impl Topic {
    const NONE: Topic = Topic { database: 0, length: 0, name: [0; NAME] };

    fn new(database: u32, name: &[u8]) -> Topic {
        let length = name.len().min(NAME);
        let mut topic = Topic { database, length: length as u8, ..Topic::NONE };
        topic.name[..length].copy_from_slice(&name[..length]);
        topic
    }

    fn name(&self) -> &[u8] {
        &self.name[..usize::from(self.length)]
    }
}

/// Who tells the listeners of a database; database 0: nobody tells any.
#[derive(Clone, Copy)]
#[repr(C)]
struct Notifier {
    database: u32,
    session: u32,
    missed: bool,
    asked_at: i64,
    alarm: i64,
}

impl Notifier {
    const NONE: Notifier =
        Notifier { database: 0, session: NOBODY, missed: false, asked_at: 0, alarm: NEVER };

    fn session(&self) -> Option<usize> {
        (self.session != NOBODY).then_some(self.session as usize)
    }
}

/// What a notifier takes.
#[derive(Clone, Copy)]
pub struct Notifications {
    topics: [Topic; TOPICS],
    /// There were more topics than there was room for.
    pub missed: bool,
    alarm: i64,
}

impl Notifications {
    pub fn topics(&self) -> impl Iterator<Item = &[u8]> {
        self.topics.iter().filter(|topic| topic.database != 0).map(Topic::name)
    }

    /// The earliest time, of those the notifier has not heard of, at which something is due.
    pub fn alarm(&self) -> Option<i64> {
        (self.alarm != NEVER).then_some(self.alarm)
    }

    /// Nothing but perhaps an alarm.
    pub fn is_empty(&self) -> bool {
        !self.missed && self.topics().next().is_none()
    }
}

/// Sessions are numbers; the one that is returned is to be woken.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct PendingNotifications {
    notifiers: [Notifier; NOTIFIERS],
    topics: [Topic; TOPICS],
}

impl PendingNotifications {
    pub const EMPTY: PendingNotifications =
        PendingNotifications { notifiers: [Notifier::NONE; NOTIFIERS], topics: [Topic::NONE; TOPICS] };

    fn notifier(&mut self, database: u32) -> Option<&mut Notifier> {
        self.notifiers.iter_mut().find(|notifier| notifier.database == database)
    }

    /// True if `database` has no notifier, and the caller is to start one.
    pub fn ask(&mut self, database: u32, now: i64) -> bool {
        let fresh = Notifier { database, asked_at: now, ..Notifier::NONE };
        let given_up = |notifier: &Notifier| {
            notifier.session == NOBODY && now.abs_diff(notifier.asked_at) > PATIENCE.unsigned_abs()
        };
        if let Some(notifier) = self.notifier(database) {
            let again = given_up(notifier);
            notifier.asked_at = if again { now } else { notifier.asked_at };
            return again;
        }
        let slot = self.notifiers.iter_mut().find(|notifier| notifier.database == 0 || given_up(notifier));
        slot.map(|slot| *slot = fresh).is_some()
    }

    /// `session` is the notifier of `database` from now on. False if there is one.
    pub fn begin(&mut self, database: u32, session: usize, now: i64) -> bool {
        self.ask(database, now);
        match self.notifier(database) {
            Some(notifier) if notifier.session == NOBODY => {
                notifier.session = session as u32;
                true
            }
            _ => false,
        }
    }

    /// It ends. What is pending for it goes with it.
    pub fn end(&mut self, database: u32, session: usize) {
        if let Some(notifier) = self.notifier(database)
            && notifier.session() == Some(session)
        {
            *notifier = Notifier::NONE;
            self.take_topics(database);
        }
    }

    /// The same, unless there is something for it.
    pub fn end_if_idle(&mut self, database: u32, session: usize) -> bool {
        let alarm = self.notifier(database).map_or(NEVER, |notifier| notifier.alarm);
        let idle = alarm == NEVER && !self.topics.iter().any(|topic| topic.database == database);
        if idle {
            self.end(database, session);
        }
        idle
    }

    /// Something can be claimed in `topic`.
    pub fn add(&mut self, database: u32, topic: &[u8]) -> Option<usize> {
        let session = self.notifier(database)?.session();
        if self.topics.iter().any(|known| known.database == database && known.name() == topic) {
            return None;
        }
        match self.topics.iter_mut().find(|slot| slot.database == 0) {
            Some(slot) => *slot = Topic::new(database, topic),
            None => {
                let notifier = self.notifier(database)?;
                if std::mem::replace(&mut notifier.missed, true) {
                    return None;
                }
            }
        }
        session
    }

    /// At `time` something is due.
    pub fn expect(&mut self, database: u32, time: i64) -> Option<usize> {
        let notifier = self.notifier(database)?;
        let earlier = time < notifier.alarm;
        notifier.alarm = notifier.alarm.min(time);
        if earlier { notifier.session() } else { None }
    }

    /// What the notifier of `database` has to tell.
    pub fn take(&mut self, database: u32) -> Notifications {
        let topics = self.take_topics(database);
        let (missed, alarm) = self.notifier(database).map_or((false, NEVER), |notifier| {
            (std::mem::take(&mut notifier.missed), std::mem::replace(&mut notifier.alarm, NEVER))
        });
        Notifications { topics, missed, alarm }
    }

    fn take_topics(&mut self, database: u32) -> [Topic; TOPICS] {
        let mut taken = [Topic::NONE; TOPICS];
        for (taken, topic) in taken.iter_mut().zip(&mut self.topics) {
            if topic.database == database {
                *taken = std::mem::replace(topic, Topic::NONE);
            }
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_000_000_000;

    fn with_notifier(databases: &[u32]) -> PendingNotifications {
        let mut pending = PendingNotifications::EMPTY;
        for database in databases {
            assert!(pending.ask(*database, NOW));
            assert!(pending.begin(*database, *database as usize * 10, NOW));
        }
        pending
    }

    fn names(notifications: &Notifications) -> Vec<&[u8]> {
        notifications.topics().collect()
    }

    #[test]
    fn a_topic_is_told_once_however_often_it_is_marked() {
        let mut pending = with_notifier(&[1, 2]);
        assert_eq!(pending.add(1, b"orders"), Some(10));
        assert_eq!(pending.add(1, b"orders"), None);
        assert_eq!(pending.add(2, b"orders"), Some(20));
        assert_eq!(pending.add(1, &[b'x'; NAME]), Some(10));
        let notifications = pending.take(1);
        assert_eq!(names(&notifications), [&b"orders"[..], &[b'x'; NAME]]);
        assert!(!notifications.missed && notifications.alarm().is_none());
        assert_eq!(names(&pending.take(1)), [] as [&[u8]; 0]);
        assert_eq!(pending.add(1, b"orders"), Some(10));
        assert_eq!(names(&pending.take(2)), [b"orders"]);
    }

    #[test]
    fn a_full_list_says_so_and_has_room_again_once_it_was_taken() {
        let mut pending = with_notifier(&[1, 2]);
        for n in 0..TOPICS {
            assert_eq!(pending.add(1, n.to_string().as_bytes()), Some(10));
        }
        assert_eq!(pending.add(1, b"one more"), Some(10));
        assert_eq!(pending.add(1, b"and another"), None);
        assert_eq!(pending.add(2, b"of the neighbour"), Some(20));
        let notifications = pending.take(1);
        assert!(notifications.missed && names(&notifications).len() == TOPICS);
        assert!(pending.take(2).missed);
        assert_eq!(pending.add(2, b"orders"), Some(20));
        assert!(!pending.take(1).missed && !pending.take(2).missed);
    }

    #[test]
    fn one_notifier_a_database_and_another_when_that_one_has_gone() {
        let mut pending = PendingNotifications::EMPTY;
        assert_eq!(pending.add(1, b"nobody is there"), None);
        assert!(pending.ask(1, NOW));
        assert!(!pending.ask(1, NOW + PATIENCE));
        assert_eq!(pending.add(1, b"it is on its way"), None);
        assert!(pending.ask(1, NOW + PATIENCE + 1), "it never came");
        assert!(pending.begin(1, 5, NOW));
        assert!(!pending.begin(1, 6, NOW));
        assert!(!pending.ask(1, NOW + 10 * PATIENCE));
        assert!(!pending.end_if_idle(1, 5));
        assert_eq!(names(&pending.take(1)), [b"it is on its way"]);
        assert!(pending.end_if_idle(1, 5));
        assert!(pending.ask(1, NOW));
        assert!(pending.begin(1, 7, NOW));
        pending.end(1, 5);
        assert!(!pending.ask(1, NOW), "who has gone cannot end another");
    }

    #[test]
    fn those_who_never_came_make_room() {
        let mut pending = PendingNotifications::EMPTY;
        for database in 1..=NOTIFIERS as u32 {
            assert!(pending.ask(database, NOW));
        }
        assert!(pending.begin(1, 1, NOW));
        assert!(!pending.ask(99, NOW + PATIENCE));
        assert!(pending.ask(99, NOW + PATIENCE + 1));
        assert!(!pending.ask(1, NOW + PATIENCE + 1));
    }

    #[test]
    fn the_earliest_alarm_counts() {
        let mut pending = with_notifier(&[1]);
        assert_eq!(pending.expect(1, 50), Some(10));
        assert_eq!(pending.expect(1, 60), None);
        assert_eq!(pending.expect(1, 40), Some(10));
        assert_eq!(pending.expect(2, 40), None);
        assert!(!pending.end_if_idle(1, 10));
        assert_eq!(pending.take(1).alarm(), Some(40));
        assert_eq!(pending.take(1).alarm(), None);
    }

    #[test]
    fn one_that_was_asked_for_before_the_clock_was_set_back_never_came() {
        let mut pending = PendingNotifications::EMPTY;
        assert!(pending.ask(1, NOW));
        assert!(!pending.ask(1, NOW - PATIENCE));
        assert!(pending.ask(1, NOW - PATIENCE - 1));
    }
}
