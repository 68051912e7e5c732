use super::*;

#[test]
fn numbers_of_keys_may_be_those_of_any_time_between_two_readings() {
    let keys = |pairs: &[(u32, u64)]| pairs.iter().copied().collect::<Keys>();
    let (before, after) = (keys(&[(0, 10), (3, 5)]), keys(&[(0, 14)]));
    for there in [keys(&[(0, 10), (3, 5)]), keys(&[(0, 12), (3, 1)]), keys(&[(0, 14)])] {
        assert_eq!(counts_differ(&before, &there, &after), None);
    }
    for (there, why) in [
        (keys(&[(0, 15)]), "database 0 has 15 keys, its primary has 14"),
        (keys(&[(0, 9)]), "database 0 has 9 keys, its primary has 14"),
        (keys(&[(0, 10), (3, 6)]), "database 3 has 6 keys, its primary has 0"),
        (keys(&[(0, 10), (7, 1)]), "database 7 has 1 keys, its primary has 0"),
    ] {
        assert_eq!(counts_differ(&before, &there, &after).as_deref(), Some(why));
    }
}
