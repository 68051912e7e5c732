//! Who has which lock and which permits, as far as a server has told, and what must hold of that
//! while it lives: nobody else is granted what somebody has, fences grow, and nothing ends before
//! its time unless something explains it.
//!
//! All times are lower bounds on the boot-time clock of the server: nothing is claimed that is not
//! certain.

use super::world::{Loss, MS, World};

/// Deadlines are whole milliseconds, and files have them by the wall clock.
const SLACK_US: i64 = 3 * MS;

/// Somebody who has a lock, or a permit.
#[derive(Clone, Debug)]
pub struct Holder {
    /// The owner, or the permit.
    pub name: String,
    /// 0: a string has none.
    pub fence: u64,
    /// It has the lock until then at least.
    until_us: i64,
    /// Grace and lease of its session, in milliseconds, and the client whose connection it belongs
    /// to.
    pub session: Option<(i64, i64)>,
    pub client: Option<usize>,
    /// Its owner may have given it up.
    pub is_released: bool,
    /// Something else may have ended it.
    is_excused: bool,
    /// Until when it is promised to survive the end of the process, and that of the machine.
    kept_until_us: [Option<i64>; 2],
}

impl Holder {
    fn is_sure(&self, now_us: i64) -> bool {
        !self.is_released && !self.is_excused && now_us < self.until_us
    }
}

/// One lock.
#[derive(Default, Debug)]
pub struct Lock {
    pub name: &'static str,
    pub holder: Option<Holder>,
    /// The greatest fence that the server has told of in this life, and the greatest of all; and
    /// those that survive the end of the process, and that of the machine.
    pub seen: u64,
    pub ever: u64,
    kept: [u64; 2],
    /// Something on its way may end it at any moment.
    is_threatened: bool,
}

/// One semaphore.
#[derive(Default, Debug)]
pub struct Semaphore {
    pub name: &'static str,
    pub limit: usize,
    permits: Vec<Holder>,
    is_threatened: bool,
}

/// Whether what is answered now survives the end of the process, and that of the machine.
pub type Promise = [bool; 2];

/// A grant, as it is told.
pub struct Grant<'a> {
    pub name: &'a str,
    pub fence: u64,
    /// It was asked for by somebody who did not have it.
    pub is_new: bool,
    /// It was not granted before.
    pub from_us: i64,
    pub lease_ms: i64,
    /// Of a session.
    pub grace_ms: Option<i64>,
    /// Who was told; None: by a report.
    pub client: Option<usize>,
}

impl Grant<'_> {
    fn holder(&self, promise: Promise) -> Holder {
        let until_us = self.from_us.saturating_add(self.lease_ms.saturating_mul(MS)) - SLACK_US;
        Holder {
            name: self.name.into(),
            fence: self.fence,
            until_us,
            session: self.grace_ms.map(|grace_ms| (grace_ms, self.lease_ms)),
            client: self.client,
            is_released: false,
            is_excused: false,
            kept_until_us: promise.map(|is_kept| is_kept.then_some(until_us)),
        }
    }
}

fn index(loss: Loss) -> usize {
    usize::from(loss != Loss::Process)
}

impl Lock {
    pub fn new(name: &'static str) -> Self {
        Lock { name, ..Lock::default() }
    }

    /// The lock is somebody's, as a grant or a report tells. `now_us`: the clock by now.
    pub fn belongs(&mut self, world: &World, now_us: i64, grant: &Grant<'_>, promise: Promise) {
        let new = grant.holder(promise);
        if let Some(holder) = &mut self.holder
            && holder.name == new.name
            && holder.fence == new.fence
        {
            // A report may come before the server notices the end of a connection, which shortens
            // the lease to its grace.
            let may_shorten =
                grant.client.is_none() && holder.client.is_none() && holder.session.is_some();
            if new.until_us > holder.until_us && !may_shorten {
                holder.until_us = new.until_us;
            }
            for (kept, new) in holder.kept_until_us.iter_mut().zip(new.kept_until_us) {
                *kept = (*kept).max(new);
            }
            holder.session = new.session.or(holder.session);
            holder.client = new.client.or(holder.client);
            return;
        }
        if new.until_us <= now_us && grant.is_new {
            // It may have come and gone.
            self.ever = self.ever.max(grant.fence);
            return;
        }
        // LOCK.MACQUIRE has one fence for all.
        if !self.is_of(grant.name) {
            self.ends(world, now_us, &format!("{} has it, fence {}", grant.name, grant.fence));
        }
        // What was kept may come back after its release was lost.
        let (before, is_fresh) = match grant.is_new {
            true => (self.ever, grant.fence > self.ever),
            false => (self.seen, grant.fence >= self.seen),
        };
        if grant.fence > 0 && !is_fresh {
            world.fail(&format!(
                "{}: {} has it with fence {}, and there was {before} before",
                self.name, grant.name, grant.fence
            ));
        }
        self.seen = self.seen.max(grant.fence);
        self.ever = self.ever.max(grant.fence);
        for (kept, is_kept) in self.kept.iter_mut().zip(promise) {
            if is_kept {
                *kept = (*kept).max(grant.fence);
            }
        }
        self.holder = Some(Holder { is_excused: self.is_threatened, ..new });
    }

    /// Nobody has it any more, or somebody else.
    pub fn ends(&mut self, world: &World, now_us: i64, how: &str) {
        if let Some(holder) = self.holder.take()
            && holder.is_sure(now_us)
        {
            world.fail(&format!(
                "{}: {} has it with fence {} for another {} us, and {how}",
                self.name,
                holder.name,
                holder.fence,
                holder.until_us - now_us
            ));
        }
    }

    /// Whether an owner has it for certain, in this grant.
    pub fn is_surely(&self, name: &str, fence: u64, now_us: i64) -> bool {
        let found = self.holder.as_ref();
        found.is_some_and(|it| it.name == name && it.fence == fence && it.is_sure(now_us))
    }

    /// Whether it is an owner's, as far as it is known.
    pub fn is_of(&self, name: &str) -> bool {
        self.holder.as_ref().is_some_and(|holder| holder.name == name)
    }

    /// Something may end it before its time, now or for as long as it is on its way.
    pub fn excuse(&mut self, is_threatened: bool) {
        self.is_threatened = is_threatened;
        if let Some(holder) = &mut self.holder {
            holder.is_excused = true;
        }
    }

    /// A client has shown life at `at_us`: before its lease had ended.
    pub fn goes_on(&mut self, client: usize, at_us: i64) {
        if let Some(holder) = &mut self.holder
            && holder.client == Some(client)
            && let Some((_, lease_ms)) = holder.session
            && at_us < holder.until_us
        {
            holder.until_us = holder.until_us.max(at_us + lease_ms * MS - SLACK_US);
        }
    }

    /// It is not promised to survive an end any more.
    pub fn forgive(&mut self) {
        self.kept = [0; 2];
        if let Some(holder) = &mut self.holder {
            holder.kept_until_us = [None; 2];
        }
    }

    /// A client's connection is gone since `at_us`.
    pub fn lose_connection(&mut self, client: usize, at_us: i64) {
        if let Some(holder) = &mut self.holder
            && holder.client == Some(client)
        {
            holder.client = None;
            if let Some((grace_ms, _)) = holder.session.filter(|_| at_us < holder.until_us) {
                holder.until_us = at_us + grace_ms * MS - SLACK_US;
            }
        }
    }

    /// The server was gone, and is there again since `at_us`, with what it had to keep; None: it
    /// may have kept nothing. `grows`: its fences are greater than all that it has granted before.
    pub fn come_back(&mut self, loss: Option<Loss>, at_us: i64, grows: bool) {
        let kept = loss.map_or(0, |loss| self.kept[index(loss)]);
        if !grows {
            self.ever = kept;
        }
        (self.seen, self.kept, self.is_threatened) = (kept, [kept; 2], false);
        let holder = self.holder.take();
        self.holder = holder.zip(loss).and_then(|(holder, loss)| come_back(holder, loss, at_us));
    }
}

fn come_back(mut holder: Holder, loss: Loss, at_us: i64) -> Option<Holder> {
    let until_us = holder.kept_until_us[index(loss)]?;
    holder.until_us = until_us;
    holder.kept_until_us = [Some(until_us); 2];
    holder.client = None;
    if let Some((grace_ms, _)) = holder.session
        && until_us > at_us
    {
        holder.until_us = at_us + grace_ms * MS - SLACK_US;
        holder.kept_until_us = [Some(holder.until_us); 2];
    }
    Some(holder)
}

impl Semaphore {
    pub fn new(name: &'static str, limit: usize) -> Self {
        Semaphore { name, limit, ..Semaphore::default() }
    }

    /// Permits are granted.
    pub fn grant(&mut self, world: &World, now_us: i64, grants: &[Grant<'_>], promise: Promise) {
        for grant in grants {
            self.permits.retain(|permit| permit.name != grant.name);
            let is_excused = self.is_threatened;
            self.permits.push(Holder { is_excused, ..grant.holder(promise) });
        }
        let sure: Vec<&str> = self.sure(now_us).map(|permit| permit.name.as_str()).collect();
        if sure.len() > self.limit {
            world.fail(&format!("{}: more than {} have permits: {sure:?}", self.name, self.limit));
        }
        self.permits.retain(|permit| now_us < permit.until_us);
    }

    fn sure(&self, now_us: i64) -> impl Iterator<Item = &Holder> {
        self.permits.iter().filter(move |permit| permit.is_sure(now_us))
    }

    /// These are held, as a report tells.
    pub fn compare(&self, world: &World, now_us: i64, told: &[String]) {
        if told.len() > self.limit {
            world.fail(&format!("{}: more than {} permits: {told:?}", self.name, self.limit));
        }
        if let Some(missing) = self.sure(now_us).find(|permit| !told.contains(&permit.name)) {
            world.fail(&format!("{}: {missing:?} is not among {told:?}", self.name));
        }
    }

    /// Whether a permit is held for certain.
    pub fn is_surely(&self, name: &str, now_us: i64) -> bool {
        self.sure(now_us).any(|permit| permit.name == name)
    }

    pub fn release(&mut self, name: &str, is_released: bool) {
        let found = self.permits.iter_mut().find(|permit| permit.name == name);
        if let Some(permit) = found {
            permit.is_released = is_released;
        }
    }

    /// A permit is renewed for so long from `from_us` on.
    pub fn renew(&mut self, name: &str, from_us: i64, lease_ms: i64, promise: Promise) {
        if let Some(permit) = self.permits.iter_mut().find(|permit| permit.name == name) {
            permit.until_us = permit.until_us.max(from_us + lease_ms * MS - SLACK_US);
            for (kept, is_kept) in permit.kept_until_us.iter_mut().zip(promise) {
                *kept = (*kept).max(is_kept.then_some(permit.until_us));
            }
        }
    }

    pub fn forgive(&mut self) {
        self.permits.iter_mut().for_each(|permit| permit.kept_until_us = [None; 2]);
    }

    pub fn excuse(&mut self, is_threatened: bool) {
        self.is_threatened = is_threatened;
        self.permits.iter_mut().for_each(|permit| permit.is_excused = true);
    }

    pub fn come_back(&mut self, loss: Option<Loss>, at_us: i64) {
        let permits = std::mem::take(&mut self.permits);
        self.is_threatened = false;
        let Some(loss) = loss else { return };
        self.permits =
            permits.into_iter().filter_map(|permit| come_back(permit, loss, at_us)).collect();
    }
}
