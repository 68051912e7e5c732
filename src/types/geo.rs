//! Positions on Earth as scores: 52 bits that interleave longitude and latitude, so that
//! neighbouring positions have similar scores.
//!
//! ```text
//!   score     b51 b50 b49 ... b1 b0    odd bits: longitude, 26 bits of -180 to 180
//!                                      even bits: latitude, 26 bits of -85.05112878 to 85.05112878 (EPSG:900913)
//! ```
//!
//! The first 2n bits of a score are a cell of a grid of 2^n by 2^n. A search chooses the grid whose
//! cells are about as large as the area, scans the centre's cell and those around it, each of which
//! is a range of scores, and compares distances. Distances are by the haversine formula on a
//! sphere. All follows Redis's `geohash_helper.c` operation by operation, because replies show
//! every digit.

use std::f64::consts::PI;

/// Radius of the sphere. Unit: metres.
const EARTH_RADIUS_M: f64 = 6372797.560856;
/// Half of the circumference in the Mercator projection. Unit: metres.
const MERCATOR_MAX_M: f64 = 20037726.37;
pub const LONGITUDE_MAX: f64 = 180.0;
pub const LATITUDE_MAX: f64 = 85.05112878;
/// Bits of each coordinate in a score.
const STEPS_MAX: u32 = 26;
const RADIANS_PER_DEGREE: f64 = PI / 180.0;
const ODD_BITS: u64 = 0xaaaa_aaaa_aaaa_aaaa;
const EVEN_BITS: u64 = 0x5555_5555_5555_5555;
const ALPHABET: &[u8; 32] = b"0123456789bcdefghjkmnpqrstuvwxyz";

/// A position. Unit: degrees.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    pub longitude: f64,
    pub latitude: f64,
}

/// The shape of a search area. Unit: metres.
#[derive(Clone, Debug, PartialEq)]
pub enum Shape {
    Circle {
        radius: f64,
    },
    Box {
        width: f64,
        height: f64,
    },
    /// Its centre is computed from its vertices.
    Polygon(Vec<Point>),
}

/// An area to search.
#[derive(Clone, Debug, PartialEq)]
pub struct Area {
    pub center: Point,
    pub shape: Shape,
}

/// A cell of the grid of 2^steps by 2^steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cell {
    bits: u64,
    steps: u32,
}

/// Unit: degrees.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    west: f64,
    south: f64,
    east: f64,
    north: f64,
}

fn radians(degrees: f64) -> f64 {
    degrees * RADIANS_PER_DEGREE
}

fn degrees(radians: f64) -> f64 {
    radians / RADIANS_PER_DEGREE
}

impl Point {
    /// Whether it is in the range that scores can represent.
    pub fn is_valid(&self) -> bool {
        self.longitude.abs() <= LONGITUDE_MAX && self.latitude.abs() <= LATITUDE_MAX
    }

    /// The score of this position.
    pub fn score(&self) -> f64 {
        encode(*self, LATITUDE_MAX, STEPS_MAX).bits as f64
    }

    /// The centre of a score's cell.
    pub fn from_score(score: f64) -> Point {
        let bounds = Cell { bits: to_bits(score), steps: STEPS_MAX }.bounds();
        Point {
            longitude: ((bounds.west + bounds.east) / 2.0).clamp(-LONGITUDE_MAX, LONGITUDE_MAX),
            latitude: ((bounds.south + bounds.north) / 2.0).clamp(-LATITUDE_MAX, LATITUDE_MAX),
        }
    }

    /// The geohash of <http://geohash.org>, 11 characters. It encodes latitudes from -90, so it is
    /// computed from the position; and it would have 55 bits, of which 52 exist: the last character
    /// is always 0.
    pub fn geohash(&self) -> [u8; 11] {
        let bits = encode(*self, 90.0, STEPS_MAX).bits;
        std::array::from_fn(|index| match index {
            10 => ALPHABET[0],
            _ => ALPHABET[(bits >> (52 - (index + 1) * 5)) as usize & 0x1f],
        })
    }

    /// Unit: metres.
    pub fn distance(&self, other: Point) -> f64 {
        let v = ((radians(other.longitude) - radians(self.longitude)) / 2.0).sin();
        if v == 0.0 {
            return latitude_distance(self.latitude, other.latitude);
        }
        let (from, to) = (radians(self.latitude), radians(other.latitude));
        let u = ((to - from) / 2.0).sin();
        let a = u * u + from.cos() * to.cos() * v * v;
        // Rounding can exceed 1 slightly for antipodes.
        2.0 * EARTH_RADIUS_M * a.min(1.0).sqrt().asin()
    }
}

/// Distance along a meridian. Unit: metres.
fn latitude_distance(from: f64, to: f64) -> f64 {
    EARTH_RADIUS_M * (radians(to) - radians(from)).abs()
}

/// A score converted to an unsigned integer as x86 does it: any score may be given.
fn to_bits(score: f64) -> u64 {
    const TWO_TO_63: f64 = 9223372036854775808.0;
    let signed = |value: f64| {
        if (-TWO_TO_63..TWO_TO_63).contains(&value) { value as i64 } else { i64::MIN }
    };
    if score < TWO_TO_63 {
        signed(score) as u64
    } else {
        signed(score - TWO_TO_63) as u64 ^ 1 << 63
    }
}

/// The cell of a position, for latitudes up to `latitude_max`.
fn encode(point: Point, latitude_max: f64, steps: u32) -> Cell {
    let scale = |value: f64, max: f64| {
        let offset = (value - -max) / (max - -max);
        (offset * (1u64 << steps) as f64) as u32
    };
    let latitude = scale(point.latitude, latitude_max);
    let longitude = scale(point.longitude, LONGITUDE_MAX);
    Cell { bits: spread(latitude) | spread(longitude) << 1, steps }
}

/// Moves bit n to bit 2n.
fn spread(value: u32) -> u64 {
    let mut bits = u64::from(value);
    bits = (bits | bits << 16) & 0x0000_ffff_0000_ffff;
    bits = (bits | bits << 8) & 0x00ff_00ff_00ff_00ff;
    bits = (bits | bits << 4) & 0x0f0f_0f0f_0f0f_0f0f;
    bits = (bits | bits << 2) & 0x3333_3333_3333_3333;
    (bits | bits << 1) & EVEN_BITS
}

/// Collects the even bits.
fn gather(bits: u64) -> u32 {
    let mut bits = bits & EVEN_BITS;
    bits = (bits | bits >> 1) & 0x3333_3333_3333_3333;
    bits = (bits | bits >> 2) & 0x0f0f_0f0f_0f0f_0f0f;
    bits = (bits | bits >> 4) & 0x00ff_00ff_00ff_00ff;
    bits = (bits | bits >> 8) & 0x0000_ffff_0000_ffff;
    (bits | bits >> 16) as u32
}

impl Cell {
    fn bounds(self) -> Bounds {
        let (latitude, longitude) = (gather(self.bits), gather(self.bits >> 1));
        let cells = (1u64 << self.steps) as f64;
        let at = |number: u32, max: f64| -max + f64::from(number) / cells * (max - -max);
        Bounds {
            south: at(latitude, LATITUDE_MAX),
            north: at(latitude.wrapping_add(1), LATITUDE_MAX),
            west: at(longitude, LONGITUDE_MAX),
            east: at(longitude.wrapping_add(1), LONGITUDE_MAX),
        }
    }

    /// The cell some columns to the east and rows to the north; the grid wraps around.
    fn neighbor(self, east: i32, north: i32) -> Cell {
        let unused = 64 - self.steps * 2;
        let step = |own: u64, others: u64, mask: u64, by: i32| {
            let fill = others >> unused;
            let moved = match by {
                0 => return own,
                1.. => own.wrapping_add(fill.wrapping_add(1)),
                _ => (own | fill).wrapping_sub(fill.wrapping_add(1)),
            };
            moved & (mask >> unused)
        };
        let longitude = step(self.bits & ODD_BITS, EVEN_BITS, ODD_BITS, east);
        let latitude = step(self.bits & EVEN_BITS, ODD_BITS, EVEN_BITS, north);
        Cell { bits: longitude | latitude, steps: self.steps }
    }

    /// The scores of this cell: a range without its end.
    fn scores(self) -> (f64, f64) {
        let align = |bits: u64| (bits << (52 - self.steps * 2)) as f64;
        (align(self.bits), align(self.bits + 1))
    }
}

/// The cells to search, the centre's first: offsets to the east and north.
const NEIGHBORS: [(i32, i32); 9] =
    [(0, 0), (0, 1), (0, -1), (1, 0), (-1, 0), (1, 1), (-1, 1), (1, -1), (-1, -1)];

impl Area {
    pub fn circle(center: Point, radius: f64) -> Area {
        Area { center, shape: Shape::Circle { radius } }
    }

    /// The area within vertices; its centre is their mean on the sphere.
    pub fn polygon(vertices: Vec<Point>) -> Area {
        let (mut x, mut y, mut z) = (0.0, 0.0, 0.0);
        for vertex in &vertices {
            let (longitude, latitude) = (radians(vertex.longitude), radians(vertex.latitude));
            x += latitude.cos() * longitude.cos();
            y += latitude.cos() * longitude.sin();
            z += latitude.sin();
        }
        let center = Point {
            longitude: degrees(f64::atan2(y, x)),
            latitude: degrees(f64::atan2(z, (x * x + y * y).sqrt())),
        };
        Area { center, shape: Shape::Polygon(vertices) }
    }

    fn bounds(&self) -> Bounds {
        let Point { longitude, latitude } = self.center;
        let (width, height) = match &self.shape {
            Shape::Circle { radius } => (*radius, *radius),
            Shape::Box { width, height } => (width / 2.0, height / 2.0),
            Shape::Polygon(vertices) => {
                let fold = |of: fn(&Point) -> f64, start: f64, pick: fn(f64, f64) -> f64| {
                    vertices.iter().map(of).fold(start, pick)
                };
                return Bounds {
                    west: fold(|vertex| vertex.longitude, LONGITUDE_MAX, f64::min),
                    east: fold(|vertex| vertex.longitude, -LONGITUDE_MAX, f64::max),
                    south: fold(|vertex| vertex.latitude, LATITUDE_MAX, f64::min),
                    north: fold(|vertex| vertex.latitude, -LATITUDE_MAX, f64::max),
                };
            }
        };
        let to_north = degrees(height / EARTH_RADIUS_M);
        // A degree of longitude is shortest at the edge nearer to a pole. In the south Redis uses
        // the edge nearer to the equator: so do we.
        let edge = if latitude < 0.0 { latitude - to_north } else { latitude + to_north };
        let to_east = degrees(width / EARTH_RADIUS_M / radians(edge).cos());
        Bounds {
            west: longitude - to_east,
            east: longitude + to_east,
            south: latitude - to_north,
            north: latitude + to_north,
        }
    }

    /// A radius around the centre that approximately covers the area. Unit: metres.
    fn radius(&self, bounds: Bounds) -> f64 {
        match &self.shape {
            Shape::Circle { radius } => *radius,
            Shape::Box { width, height } => {
                ((width / 2.0) * (width / 2.0) + (height / 2.0) * (height / 2.0)).sqrt()
            }
            Shape::Polygon(_) => {
                let corners = [
                    (bounds.west, bounds.north),
                    (bounds.east, bounds.north),
                    (bounds.west, bounds.south),
                    (bounds.east, bounds.south),
                ];
                let distances = corners.iter().map(|&(longitude, latitude)| {
                    self.center.distance(Point { longitude, latitude })
                });
                distances.fold(0.0, f64::max)
            }
        }
    }

    /// Ranges of scores, without their ends, that cover the area, in the order in which Redis
    /// searches.
    pub fn score_ranges(&self) -> Vec<(f64, f64)> {
        let bounds = self.bounds();
        let mut steps = estimate_steps(self.radius(bounds), self.center.latitude);
        let cell_at = |steps| encode(self.center, LATITUDE_MAX, steps);
        let mut cell = cell_at(steps);
        // Near the edge of its cell the area may extend beyond the neighbours.
        let reaches_beyond = cell.neighbor(0, 1).bounds().north < bounds.north
            || cell.neighbor(0, -1).bounds().south > bounds.south
            || cell.neighbor(1, 0).bounds().east < bounds.east
            || cell.neighbor(-1, 0).bounds().west > bounds.west;
        if steps > 1 && reaches_beyond {
            steps -= 1;
            cell = cell_at(steps);
        }
        let own = cell.bounds();
        let is_useless = |east: i32, north: i32| {
            steps >= 2
                && ((north < 0 && own.south < bounds.south)
                    || (north > 0 && own.north > bounds.north)
                    || (east < 0 && own.west < bounds.west)
                    || (east > 0 && own.east > bounds.east))
        };
        let mut ranges = Vec::with_capacity(NEIGHBORS.len());
        let mut last = None;
        for (index, &(east, north)) in NEIGHBORS.iter().enumerate() {
            let neighbor = cell.neighbor(east, north);
            // On a coarse grid the neighbours on both sides may be the same cell. (As in Redis, the
            // first cell is not compared.)
            if is_useless(east, north) || last == Some(neighbor) {
                continue;
            }
            ranges.push(neighbor.scores());
            last = (index > 0).then_some(neighbor);
        }
        ranges
    }

    /// The distance of a position from the centre, if it is within the area. Unit: metres.
    pub fn distance_within(&self, point: Point) -> Option<f64> {
        let distance = || self.center.distance(point);
        match &self.shape {
            Shape::Circle { radius } => Some(distance()).filter(|distance| distance <= radius),
            Shape::Box { width, height } => {
                if latitude_distance(point.latitude, self.center.latitude) > height / 2.0 {
                    return None;
                }
                let beside = Point { longitude: self.center.longitude, ..point };
                (point.distance(beside) <= width / 2.0).then(distance)
            }
            Shape::Polygon(vertices) => is_inside(vertices, point).then(distance),
        }
    }
}

/// Whether a ray from the point to the east crosses an odd number of edges.
fn is_inside(vertices: &[Point], point: Point) -> bool {
    let mut inside = false;
    let mut previous = vertices.len() - 1;
    for (index, a) in vertices.iter().enumerate() {
        let b = vertices[previous];
        if (a.latitude > point.latitude) != (b.latitude > point.latitude)
            && point.longitude
                < (b.longitude - a.longitude) * (point.latitude - a.latitude)
                    / (b.latitude - a.latitude)
                    + a.longitude
        {
            inside = !inside;
        }
        previous = index;
    }
    inside
}

/// The grid's resolution for a radius.
fn estimate_steps(radius: f64, latitude: f64) -> u32 {
    if radius == 0.0 {
        return STEPS_MAX;
    }
    let (mut steps, mut reach) = (1, radius);
    while reach < MERCATOR_MAX_M {
        reach *= 2.0;
        steps += 1;
    }
    steps -= 2;
    // Cells are narrow near the poles.
    steps -= i32::from(latitude.abs() > 66.0) + i32::from(latitude.abs() > 80.0);
    steps.clamp(1, STEPS_MAX as i32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PALERMO: Point = Point { longitude: 13.361389, latitude: 38.115556 };
    const CATANIA: Point = Point { longitude: 15.087269, latitude: 37.502669 };

    #[test]
    fn sicily_is_where_redis_has_it() {
        assert_eq!(PALERMO.score(), 3479099956230698.0);
        assert_eq!(CATANIA.score(), 3479447370796909.0);
        let (palermo, catania) =
            (Point::from_score(PALERMO.score()), Point::from_score(CATANIA.score()));
        assert_eq!(&palermo.geohash(), b"sqc8b49rny0");
        assert_eq!(&catania.geohash(), b"sqdtr74hyu0");
        assert_eq!(palermo.longitude, 13.361389338970184);
        assert_eq!(palermo.latitude, 38.1155563954963);
        assert!((palermo.distance(catania) - 166274.1516).abs() < 0.0001);
    }

    fn point() -> impl Strategy<Value = Point> {
        (-180.0..180.0f64, -85.0..85.0f64)
            .prop_map(|(longitude, latitude)| Point { longitude, latitude })
    }

    proptest! {
        #[test]
        fn a_score_stands_for_a_place_nearby(point in point()) {
            let again = Point::from_score(point.score());
            prop_assert!(again.distance(point) < 0.6);
            prop_assert_eq!(again.score(), point.score());
        }

        #[test]
        fn what_a_search_finds_lies_in_its_ranges(
            center in (-100.0..100.0f64, -60.0..60.0f64),
            offset in (-1.0..1.0f64, -1.0..1.0f64),
            size in 10.0..500_000.0f64,
            shape in 0..3,
        ) {
            let center = Point { longitude: center.0, latitude: center.1 };
            let degrees = size / 111_000.0;
            let at = |x: f64, y: f64| Point {
                longitude: center.longitude + x * degrees,
                latitude: center.latitude + y * degrees,
            };
            let area = match shape {
                0 => Area::circle(center, size),
                1 => Area { center, shape: Shape::Box { width: size, height: size / 2.0 } },
                _ => Area::polygon(vec![at(-1.0, -1.0), at(1.0, -1.0), at(0.0, 1.0)]),
            };
            let other = Point::from_score(at(offset.0, offset.1).score());
            if area.distance_within(other).is_some() {
                let score = other.score();
                let ranges = area.score_ranges();
                let holds = |&(from, to): &(f64, f64)| from <= score && score < to;
                prop_assert!(ranges.iter().any(holds), "{:?} {:?}", ranges, score);
            }
        }

        #[test]
        fn any_score_has_a_place(score in any::<f64>()) {
            if !score.is_nan() {
                prop_assert!(Point::from_score(score).is_valid());
            }
        }
    }
}
