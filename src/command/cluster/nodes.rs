use crate::state::context::{CommandResult, Context};
pub fn bump_epoch(_: &mut Context<'_>) -> CommandResult {
    todo!()
}
pub fn failover(_: &mut Context<'_>) -> CommandResult {
    todo!()
}
pub fn forget(_: &mut Context<'_>) -> CommandResult {
    todo!()
}
pub fn meet(_: &mut Context<'_>) -> CommandResult {
    todo!()
}
pub fn replicate(_: &mut Context<'_>) -> CommandResult {
    todo!()
}
pub fn reset(_: &mut Context<'_>) -> CommandResult {
    todo!()
}
pub fn save(_: &mut Context<'_>) -> CommandResult {
    todo!()
}
pub fn set_epoch(_: &mut Context<'_>) -> CommandResult {
    todo!()
}
