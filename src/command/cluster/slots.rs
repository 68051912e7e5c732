use crate::state::context::{CommandResult, Context};
pub fn add(_: &mut Context<'_>) -> CommandResult {
    todo!()
}
pub fn add_ranges(_: &mut Context<'_>) -> CommandResult {
    todo!()
}
pub fn delete(_: &mut Context<'_>) -> CommandResult {
    todo!()
}
pub fn delete_ranges(_: &mut Context<'_>) -> CommandResult {
    todo!()
}
pub fn flush(_: &mut Context<'_>) -> CommandResult {
    todo!()
}
pub fn set(_: &mut Context<'_>) -> CommandResult {
    todo!()
}
