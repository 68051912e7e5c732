//! Geospatial commands: sorted sets whose scores encode longitude and latitude.
//!
//! The arithmetic is in `types::geo`. Here arguments are parsed, in Redis's order of errors:
//! GEORADIUS and its variants look up the key, and the central member, while parsing.

use crate::collections::score_tree::Place;
use crate::command::sorted_set::range::{repeat_stored, store};
use crate::command::sorted_set::{AddOptions, add_pairs, limits};
use crate::error::CommandError;
use crate::keyspace::Key;
use crate::resp::args::Cursor;
use crate::resp::float80::Float80;
use crate::resp::number;
use crate::resp::reply::ReplyWriter;
use crate::state::context::{CommandResult, Context, Outcome};
use crate::state::spec::{
    Begin, CommandSpec, Find, Flags, Group, Handler, KeyFlags, KeySpec, key, spec,
};
use crate::types::geo::{Area, Point, Shape};
use crate::types::sorted_set::{SortedSet, SortedSetView};

const SEARCH_COST: &str = "O(N + log(M)) with N the members in the cells around the area and M the size of the sorted set.";

const fn stored_behind(word: &'static str, from: i16) -> KeySpec {
    KeySpec {
        begin: Begin::Keyword { word, from },
        find: Find::Range { last: 0, step: 1, limit: 0 },
        flags: KeyFlags::OW_UPDATE,
        notes: None,
    }
}

const fn geo(name: &'static str, handler: Handler) -> CommandSpec {
    spec(name, handler)
        .keys(KeySpec::RO_ACCESS)
        .flags(Flags::READONLY)
        .group(Group::Geo)
        .since("3.2.0")
}

#[rustfmt::skip]
pub const COMMANDS: &[CommandSpec] = &[
    geo("GEOADD", geoadd).at_least(5).keys(&[key(1, KeyFlags::RW_UPDATE)]).flags(Flags::WRITE_DENYOOM)
        .docs("key [NX | XX] [CH] longitude latitude member [longitude latitude member ...]", "Adds members with their positions, or moves existing ones.",
            "O(log(N)) for each member, N being the size of the sorted set."),
    geo("GEODIST", geodist).at_least(4)
        .docs("key member1 member2 [M | KM | FT | MI]", "Returns the distance between two members.", "O(1)"),
    geo("GEOHASH", geohash).at_least(2)
        .docs("key member [member ...]", "Returns the positions of members as geohashes.", "O(1) for each member"),
    geo("GEOPOS", geopos).at_least(2)
        .docs("key member [member ...]", "Returns longitude and latitude of members.", "O(1) for each member"),
    geo("GEORADIUS", georadius).at_least(6).keys(&[key(1, KeyFlags::RO_ACCESS), stored_behind("STORE", 6), stored_behind("STOREDIST", 6)])
        .flags(Flags::WRITE_DENYOOM).deprecated("6.2.0", "`GEOSEARCH` and `GEOSEARCHSTORE` with the `BYRADIUS` argument")
        .docs("key longitude latitude radius <M | KM | FT | MI> [WITHCOORD] [WITHDIST] [WITHHASH] [COUNT count [ANY]] [ASC | DESC] [STORE key | STOREDIST key]",
            "Returns or stores the members around a place.", SEARCH_COST),
    geo("GEORADIUS_RO", georadius_ro).at_least(6).since("3.2.10").deprecated("6.2.0", "`GEOSEARCH` with the `BYRADIUS` argument")
        .docs("key longitude latitude radius <M | KM | FT | MI> [WITHCOORD] [WITHDIST] [WITHHASH] [COUNT count [ANY]] [ASC | DESC]",
            "Returns the members around a place.", SEARCH_COST),
    geo("GEORADIUSBYMEMBER", georadiusbymember).at_least(5).keys(&[key(1, KeyFlags::RO_ACCESS), stored_behind("STORE", 5), stored_behind("STOREDIST", 5)])
        .flags(Flags::WRITE_DENYOOM).deprecated("6.2.0", "`GEOSEARCH` and `GEOSEARCHSTORE` with the `BYRADIUS` and `FROMMEMBER` arguments")
        .docs("key member radius <M | KM | FT | MI> [WITHCOORD] [WITHDIST] [WITHHASH] [COUNT count [ANY]] [ASC | DESC] [STORE key | STOREDIST key]",
            "Returns or stores the members around another member.", SEARCH_COST),
    geo("GEORADIUSBYMEMBER_RO", georadiusbymember_ro).at_least(5).since("3.2.10")
        .deprecated("6.2.0", "`GEOSEARCH` with the `BYRADIUS` and `FROMMEMBER` arguments")
        .docs("key member radius <M | KM | FT | MI> [WITHCOORD] [WITHDIST] [WITHHASH] [COUNT count [ANY]] [ASC | DESC]",
            "Returns the members around another member.", SEARCH_COST),
    geo("GEOSEARCH", geosearch).at_least(7).since("6.2.0")
        .docs("key <FROMMEMBER member | FROMLONLAT longitude latitude> <BYRADIUS radius <M | KM | FT | MI> | BYBOX width height <M | KM | FT | MI>> [ASC | \
            DESC] [COUNT count [ANY]] [WITHCOORD] [WITHDIST] [WITHHASH]",
            "Returns the members in a circle, a box or a polygon.", SEARCH_COST),
    geo("GEOSEARCHSTORE", geosearchstore).at_least(8).keys(&[key(1, KeyFlags::OW_UPDATE), key(2, KeyFlags::RO_ACCESS)]).flags(Flags::WRITE_DENYOOM)
        .since("6.2.0")
        .docs("destination source <FROMMEMBER member | FROMLONLAT longitude latitude> <BYRADIUS radius <M | KM | FT | MI> | BYBOX width height <M | KM | FT | \
            MI>> [ASC | DESC] [COUNT count [ANY]] [STOREDIST]",
            "Stores the members in a circle, a box or a polygon.", SEARCH_COST),
];

const UNKNOWN_UNIT: CommandError =
    CommandError::Text("ERR unsupported unit provided. please use M, KM, FT, MI");
const NOT_A_RADIUS: CommandError = CommandError::Text("ERR need numeric radius");
const NEGATIVE_RADIUS: CommandError = CommandError::Text("ERR radius cannot be negative");
const NOT_A_WIDTH: CommandError = CommandError::Text("ERR need numeric width");
const NOT_A_HEIGHT: CommandError = CommandError::Text("ERR need numeric height");
const NEGATIVE_SIDE: CommandError = CommandError::Text("ERR height or width cannot be negative");
const NO_SUCH_MEMBER: CommandError =
    CommandError::Text("ERR could not decode requested zset member");
const ANY_WITHOUT_COUNT: CommandError =
    CommandError::Text("ERR the ANY argument requires COUNT argument");
const NOT_VERTICES: CommandError = CommandError::Text("ERR invalid number of vertices");
const FEW_VERTICES: CommandError =
    CommandError::Text("ERR GEOSEARCH BYPOLYGON must have at least 3 vertices");
const STORE_WITH_DETAILS: CommandError = CommandError::Text(
    "ERR STORE option in GEORADIUS is not compatible with WITHDIST, WITHHASH and WITHCOORD options",
);
const SEARCH_STORE_WITH_DETAILS: CommandError = CommandError::Text(
    "ERR GEOSEARCHSTORE is not compatible with WITHDIST, WITHHASH and WITHCOORD options",
);

/// Metres per unit.
fn parse_unit(text: &[u8]) -> Result<f64, CommandError> {
    const UNITS: [(&str, f64); 4] = [("m", 1.0), ("km", 1000.0), ("ft", 0.3048), ("mi", 1609.34)];
    let found = UNITS.iter().find(|(name, _)| text.eq_ignore_ascii_case(name.as_bytes()));
    found.map(|(_, metres)| *metres).ok_or(UNKNOWN_UNIT)
}

/// `longitude latitude`.
fn parse_point(longitude: &[u8], latitude: &[u8]) -> Result<Point, CommandError> {
    let number = |text| number::parse_f64(text).ok_or(CommandError::NotFloat);
    let point = Point { longitude: number(longitude)?, latitude: number(latitude)? };
    if !point.is_valid() {
        let Point { longitude, latitude } = point;
        let text = format!("ERR invalid longitude,latitude pair {longitude:.6},{latitude:.6}");
        return Err(CommandError::formatted(text));
    }
    Ok(point)
}

/// `GEOADD key [NX | XX] [CH] longitude latitude member [...]`: as ZADD.
fn geoadd(ctx: &mut Context<'_>) -> CommandResult {
    let mut options = AddOptions::default();
    let mut arguments = ctx.args.cursor(2);
    loop {
        if arguments.take_word("NX") {
            options.only_new = true;
        } else if arguments.take_word("XX") {
            options.only_there = true;
        } else if arguments.take_word("CH") {
            options.counts_changed = true;
        } else {
            break;
        }
    }
    let is_whole = !arguments.is_at_end() && arguments.remaining().is_multiple_of(3);
    if !is_whole || (options.only_new && options.only_there) {
        return Err(CommandError::Syntax);
    }
    let mut pairs = Vec::with_capacity(arguments.remaining() / 3);
    while !arguments.is_at_end() {
        let point = parse_point(arguments.take()?, arguments.take()?)?;
        pairs.push((point.score(), arguments.take()?));
    }
    let changes = ctx.core.keyspace.changes_by_commands();
    let outcome = add_pairs(ctx, &options, &pairs)?;
    if ctx.core.keyspace.changes_by_commands() != changes {
        let args = ctx.args;
        ctx.instead_gathered(|_, request| {
            request.push(b"zadd".to_vec());
            let before_pairs = args.len() - 3 * pairs.len();
            request.extend(args.iter_from(1).take(before_pairs - 1).map(<[u8]>::to_vec));
            for (score, member) in pairs {
                request.extend([(score as i64).to_string().into_bytes(), member.to_vec()]);
            }
        });
    }
    Ok(outcome)
}

/// A member's position.
fn place_of(set: Option<SortedSetView<'_>>, member: &[u8]) -> Option<Point> {
    set.and_then(|set| set.score(member)).map(Point::from_score)
}

/// `GEODIST key member1 member2 [M | KM | FT | MI]`: a bulk string with four decimals, or nil.
fn geodist(ctx: &mut Context<'_>) -> CommandResult {
    let unit = match ctx.args.len() {
        4 => 1.0,
        5 => parse_unit(ctx.args.get(4))?,
        _ => return Err(CommandError::Syntax),
    };
    let set = ctx.core.keyspace.read::<SortedSet>(ctx.key(1))?;
    match (place_of(set, ctx.args.get(2)), place_of(set, ctx.args.get(3))) {
        (Some(from), Some(to)) => reply_distance(&mut ctx.reply, from.distance(to) / unit),
        _ => ctx.reply.null(),
    }
    Ok(Outcome::Replied)
}

/// A distance with four decimals, rounded half to even.
fn reply_distance(reply: &mut ReplyWriter<'_>, distance: f64) {
    let scaled = (distance * 10_000.0).round_ties_even() as u64;
    reply.bulk(format!("{}.{:04}", scaled / 10_000, scaled % 10_000).as_bytes());
}

/// Longitude and latitude: an array of two doubles.
fn reply_point(reply: &mut ReplyWriter<'_>, point: Point) {
    reply.array(2);
    reply.double_text(&Float80::from_f64(point.longitude).to_text());
    reply.double_text(&Float80::from_f64(point.latitude).to_text());
}

/// `GEOHASH key [member ...]`: an array of bulk strings, nil for absent members.
fn geohash(ctx: &mut Context<'_>) -> CommandResult {
    let set = ctx.core.keyspace.read::<SortedSet>(ctx.key(1))?;
    let members = ctx.args.iter_from(2);
    ctx.reply.array(members.len());
    for member in members {
        match place_of(set, member) {
            Some(point) => ctx.reply.bulk(&point.geohash()),
            None => ctx.reply.null(),
        }
    }
    Ok(Outcome::Replied)
}

/// `GEOPOS key [member ...]`: an array of arrays of two, nil for absent members.
fn geopos(ctx: &mut Context<'_>) -> CommandResult {
    let set = ctx.core.keyspace.read::<SortedSet>(ctx.key(1))?;
    let members = ctx.args.iter_from(2);
    ctx.reply.array(members.len());
    for member in members {
        match place_of(set, member) {
            Some(point) => reply_point(&mut ctx.reply, point),
            None => ctx.reply.null_array(),
        }
    }
    Ok(Outcome::Replied)
}

// ---- searching ----------------------------------------------------------------------------------

/// The command that searches: its arguments depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Search {
    /// GEORADIUS.
    Around { stores: bool },
    /// GEORADIUSBYMEMBER.
    AroundMember { stores: bool },
    /// GEOSEARCH.
    Free,
    /// GEOSEARCHSTORE.
    FreeStore,
}

impl Search {
    fn is_free(self) -> bool {
        matches!(self, Search::Free | Search::FreeStore)
    }

    /// Whether STORE and STOREDIST are options.
    fn has_store(self) -> bool {
        matches!(self, Search::Around { stores: true } | Search::AroundMember { stores: true })
    }
}

/// `GEORADIUS key longitude latitude radius unit [options]`: an array of members, or of arrays of
/// member, distance, score and position, as requested; with STORE the number stored.
fn georadius(ctx: &mut Context<'_>) -> CommandResult {
    search(ctx, Search::Around { stores: true })
}

/// `GEORADIUS_RO key longitude latitude radius unit [options]`: as GEORADIUS.
fn georadius_ro(ctx: &mut Context<'_>) -> CommandResult {
    search(ctx, Search::Around { stores: false })
}

/// `GEORADIUSBYMEMBER key member radius unit [options]`: as GEORADIUS.
fn georadiusbymember(ctx: &mut Context<'_>) -> CommandResult {
    search(ctx, Search::AroundMember { stores: true })
}

/// `GEORADIUSBYMEMBER_RO key member radius unit [options]`: as GEORADIUS.
fn georadiusbymember_ro(ctx: &mut Context<'_>) -> CommandResult {
    search(ctx, Search::AroundMember { stores: false })
}

/// `GEOSEARCH key <center> <shape> [options]`: as GEORADIUS.
fn geosearch(ctx: &mut Context<'_>) -> CommandResult {
    search(ctx, Search::Free)
}

/// `GEOSEARCHSTORE destination source <center> <shape> [options]`: the number stored.
fn geosearchstore(ctx: &mut Context<'_>) -> CommandResult {
    search(ctx, Search::FreeStore)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Ascending,
    Descending,
}

/// Options of a search.
#[derive(Default)]
struct SearchOptions {
    /// None: around a member of an absent key.
    center: Option<Point>,
    has_center: bool,
    center_is_member: bool,
    shape: Option<Shape>,
    /// Metres per unit of distances.
    unit: f64,
    with_distance: bool,
    with_hash: bool,
    with_place: bool,
    order: Option<Order>,
    count: Option<usize>,
    any: bool,
    /// The index of the destination key.
    destination: Option<usize>,
    stores_distances: bool,
    /// Whether errors have Valkey's texts.
    is_valkey: bool,
}

impl SearchOptions {
    fn parse(
        is_valkey: bool,
        search: Search,
        set: Option<SortedSetView<'_>>,
        mut arguments: Cursor<'_>,
        name: &[u8],
    ) -> Result<Self, CommandError> {
        let mut options = SearchOptions { unit: 1.0, is_valkey, ..SearchOptions::default() };
        match search {
            Search::Around { .. } => {
                let point = parse_point(arguments.take()?, arguments.take()?)?;
                options.set_center(Some(point));
                options.take_radius(&mut arguments)?;
            }
            // Without a key neither member nor radius are checked.
            Search::AroundMember { .. } if set.is_none() => {
                for _ in 0..3 {
                    arguments.take()?;
                }
            }
            Search::AroundMember { .. } => {
                let member = arguments.take()?;
                let place = place_of(set, member).ok_or_else(|| options.no_such(member))?;
                options.set_center(Some(place));
                options.take_radius(&mut arguments)?;
            }
            Search::FreeStore => options.destination = Some(1),
            Search::Free => {}
        }
        while !arguments.is_at_end() {
            options.take_option(search, set, &mut arguments)?;
        }
        options.check(search, name)?;
        Ok(options)
    }

    fn set_center(&mut self, center: Option<Point>) {
        (self.center, self.has_center) = (center, true);
    }

    /// `radius unit`.
    fn take_radius(&mut self, arguments: &mut Cursor<'_>) -> Result<(), CommandError> {
        let radius = number::parse_f64(arguments.take()?).ok_or(NOT_A_RADIUS)?;
        if radius < 0.0 {
            return Err(NEGATIVE_RADIUS);
        }
        self.unit = parse_unit(arguments.take()?)?;
        self.shape = Some(Shape::Circle { radius: radius * self.unit });
        Ok(())
    }

    /// `width height unit`.
    fn take_box(&mut self, arguments: &mut Cursor<'_>) -> Result<(), CommandError> {
        let width = number::parse_f64(arguments.take()?).ok_or(NOT_A_WIDTH)?;
        let height = number::parse_f64(arguments.take()?).ok_or(NOT_A_HEIGHT)?;
        if width < 0.0 || height < 0.0 {
            return Err(NEGATIVE_SIDE);
        }
        self.unit = parse_unit(arguments.take()?)?;
        self.shape = Some(Shape::Box { width: width * self.unit, height: height * self.unit });
        Ok(())
    }

    /// `numvertices longitude latitude [longitude latitude ...]`.
    fn take_polygon(&mut self, arguments: &mut Cursor<'_>) -> Result<(), CommandError> {
        let count = number::parse_i64(arguments.take()?)
            .filter(|count| i32::try_from(*count).is_ok())
            .ok_or(NOT_VERTICES)?;
        let count = usize::try_from(count).unwrap_or(0);
        if count < 3 || arguments.remaining() / 2 < count {
            return Err(FEW_VERTICES);
        }
        let mut vertices = Vec::with_capacity(count);
        for _ in 0..count {
            vertices.push(parse_point(arguments.take()?, arguments.take()?)?);
        }
        self.shape = Some(Shape::Polygon(vertices));
        Ok(())
    }

    fn take_option(
        &mut self,
        search: Search,
        set: Option<SortedSetView<'_>>,
        arguments: &mut Cursor<'_>,
    ) -> Result<(), CommandError> {
        let is_taken = self.take_shown(arguments)?
            || self.take_destination(search, arguments)?
            || (search.is_free()
                && (self.take_center(set, arguments)? || self.take_shape(arguments)?));
        if is_taken { Ok(()) } else { Err(CommandError::Syntax) }
    }

    /// Parses options for the reply's content, count and order. False: the next argument is none of
    /// these.
    fn take_shown(&mut self, arguments: &mut Cursor<'_>) -> Result<bool, CommandError> {
        if arguments.take_word("WITHDIST") {
            self.with_distance = true;
        } else if arguments.take_word("WITHHASH") {
            self.with_hash = true;
        } else if arguments.take_word("WITHCOORD") {
            self.with_place = true;
        } else if arguments.take_word("ANY") {
            self.any = true;
        } else if arguments.take_word("ASC") {
            self.order = Some(Order::Ascending);
        } else if arguments.take_word("DESC") {
            self.order = Some(Order::Descending);
        } else if arguments.remaining() > 1 && arguments.take_word("COUNT") {
            let count = usize::try_from(arguments.take_integer()?).ok();
            let count = count.filter(|&count| count > 0);
            self.count = Some(count.ok_or(CommandError::COUNT_NOT_POSITIVE)?);
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    /// Parses options for storing the result.
    fn take_destination(
        &mut self,
        search: Search,
        arguments: &mut Cursor<'_>,
    ) -> Result<bool, CommandError> {
        if search == Search::FreeStore && arguments.take_word("STOREDIST") {
            self.stores_distances = true;
            return Ok(true);
        }
        if !search.has_store() || arguments.remaining() < 2 {
            return Ok(false);
        }
        if arguments.take_word("STORE") {
            self.stores_distances = false;
        } else if arguments.take_word("STOREDIST") {
            self.stores_distances = true;
        } else {
            return Ok(false);
        }
        self.destination = Some(arguments.position());
        arguments.take()?;
        Ok(true)
    }

    /// Parses the centre of a circle or box.
    fn take_center(
        &mut self,
        set: Option<SortedSetView<'_>>,
        arguments: &mut Cursor<'_>,
    ) -> Result<bool, CommandError> {
        if matches!(self.shape, Some(Shape::Polygon(_))) {
            return Ok(false);
        }
        let from_member = self.has_center && self.center_is_member;
        let from_place = self.has_center && !self.center_is_member;
        if !from_place && arguments.remaining() > 1 && arguments.take_word("FROMMEMBER") {
            let member = arguments.take()?;
            let place =
                set.map(|set| place_of(Some(set), member).ok_or_else(|| self.no_such(member)));
            self.set_center(place.transpose()?);
            self.center_is_member = true;
        } else if !from_member && arguments.remaining() > 2 && arguments.take_word("FROMLONLAT") {
            let point = parse_point(arguments.take()?, arguments.take()?)?;
            self.set_center(Some(point));
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    /// Parses the shape. Errors: another shape is given already.
    fn take_shape(&mut self, arguments: &mut Cursor<'_>) -> Result<bool, CommandError> {
        let remaining = arguments.remaining();
        let is_free = self.shape.is_none();
        let is_circle = matches!(self.shape, Some(Shape::Circle { .. }));
        let is_box = matches!(self.shape, Some(Shape::Box { .. }));
        let is_polygon = matches!(self.shape, Some(Shape::Polygon(_)));
        if (is_free || is_circle) && remaining > 2 && arguments.take_word("BYRADIUS") {
            self.take_radius(arguments)?;
        } else if (is_free || is_box) && remaining > 3 && arguments.take_word("BYBOX") {
            self.take_box(arguments)?;
        } else if (is_free || is_polygon)
            && !self.has_center
            && remaining > 2
            && arguments.take_word("BYPOLYGON")
        {
            self.take_polygon(arguments)?;
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    fn no_such(&self, member: &[u8]) -> CommandError {
        match self.is_valkey {
            true => CommandError::of_parts(&[&b"ERR member "[..], member, b" does not exist"]),
            false => NO_SUCH_MEMBER,
        }
    }

    /// Checks for missing and incompatible options.
    fn check(&self, search: Search, name: &[u8]) -> Result<(), CommandError> {
        let has_details = self.with_distance || self.with_hash || self.with_place;
        if self.destination.is_some() && has_details {
            return Err(match search {
                Search::FreeStore => SEARCH_STORE_WITH_DETAILS,
                _ => STORE_WITH_DETAILS,
            });
        }
        let is_polygon = matches!(self.shape, Some(Shape::Polygon(_)));
        let missing = if search.is_free() && !self.has_center && !is_polygon {
            Some("FROMMEMBER or FROMLONLAT")
        } else if search.is_free() && self.shape.is_none() {
            Some(match self.is_valkey {
                true => "BYRADIUS, BYBOX and BYPOLYGON",
                false => "BYRADIUS and BYBOX",
            })
        } else {
            None
        };
        if let Some(missing) = missing {
            let text = format!("ERR exactly one of {missing} can be specified for ");
            return Err(CommandError::of_parts(&[text.as_bytes(), name]));
        }
        if self.any && self.count.is_none() {
            return Err(ANY_WITHOUT_COUNT);
        }
        Ok(())
    }

    /// The area to search; None if the key is absent.
    fn area(&mut self) -> Option<Area> {
        match self.shape.take()? {
            Shape::Polygon(vertices) => Some(Area::polygon(vertices)),
            shape => Some(Area { center: self.center?, shape }),
        }
    }
}

/// A member within the area.
struct Found {
    member: Vec<u8>,
    score: f64,
    place: Point,
    /// Unit: metres.
    distance: f64,
}

/// The members within an area, cell by cell; at most `limit`.
fn find_within(set: SortedSetView<'_>, area: &Area, limit: usize) -> Vec<Found> {
    let mut found = Vec::new();
    for (min, max) in area.score_ranges() {
        let start = set.rank_of(Place::BeforeScore(min));
        let end = set.rank_of(Place::BeforeScore(max)).max(start);
        set.each_while(start..end, |score, member| {
            let place = Point::from_score(score);
            if let Some(distance) = area.distance_within(place) {
                found.push(Found { member: member.to_vec(), score, place, distance });
            }
            found.len() < limit
        });
        if found.len() >= limit {
            break;
        }
    }
    found
}

fn search(ctx: &mut Context<'_>, search: Search) -> CommandResult {
    let source = if search == Search::FreeStore { 2 } else { 1 };
    let set = ctx.core.keyspace.read::<SortedSet>(ctx.key(source))?;
    let arguments = ctx.args.cursor(source + 1);
    let is_valkey = ctx.core.state.config.compatible_with.is_valkey();
    let mut options = SearchOptions::parse(is_valkey, search, set, arguments, ctx.args.get(0))?;
    let area = options.area();
    let (Some(set), Some(area)) = (set, area) else {
        match options.destination {
            Some(destination) => {
                ctx.core.keyspace.delete(ctx.key(destination), "del");
                ctx.reply.integer(0);
            }
            None => ctx.reply.array(0),
        }
        return Ok(Outcome::Replied);
    };
    let limit = if options.any { options.count.unwrap_or(usize::MAX) } else { usize::MAX };
    let mut found = find_within(set, &area, limit);
    let order = match options.order {
        // COUNT means the nearest, unless ANY is given.
        None if options.count.is_some() && !options.any => Some(Order::Ascending),
        order => order,
    };
    match order {
        Some(Order::Ascending) => found.sort_by(|a, b| a.distance.total_cmp(&b.distance)),
        Some(Order::Descending) => found.sort_by(|a, b| b.distance.total_cmp(&a.distance)),
        None => {}
    }
    found.truncate(options.count.unwrap_or(usize::MAX));
    match options.destination {
        Some(destination) => {
            let event = if search.is_free() { "geosearchstore" } else { "georadiusstore" };
            store_found(ctx, ctx.key(destination), &found, &options, event);
        }
        None => reply_found(&mut ctx.reply, &found, &options),
    }
    Ok(Outcome::Replied)
}

fn store_found(
    ctx: &mut Context<'_>,
    key: Key<'_>,
    found: &[Found],
    options: &SearchOptions,
    event: &'static str,
) {
    let mut result = SortedSet::for_result();
    for Found { member, score, distance, .. } in found {
        let distance = distance / options.unit;
        result.put(member, |_| if options.stores_distances { distance } else { *score });
    }
    let result = result.settle(limits(ctx));
    let changes = result.len() as u64;
    let was_there = ctx.core.keyspace.find(key).is_some();
    let count = store(ctx, key, result, event, changes);
    if options.count.is_some() {
        // A server of another kind may choose other members, if distances are equal or any members
        // will do.
        repeat_stored(ctx, key, was_there);
    }
    ctx.reply.integer(count as i64);
}

fn reply_found(reply: &mut ReplyWriter<'_>, found: &[Found], options: &SearchOptions) {
    let details = [options.with_distance, options.with_hash, options.with_place];
    let details = details.iter().filter(|&&detail| detail).count();
    reply.array(found.len());
    for Found { member, score, place, distance } in found {
        if details > 0 {
            reply.array(1 + details);
        }
        reply.bulk(member);
        if options.with_distance {
            reply_distance(reply, distance / options.unit);
        }
        if options.with_hash {
            reply.integer(*score as i64);
        }
        if options.with_place {
            reply_point(reply, *place);
        }
    }
}
