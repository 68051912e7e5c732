package latchkey.locks;

import java.time.Duration;

/**
 * Whether a rate allows an action.
 *
 * @param retryAfter null if it was allowed, or never will be
 * @param resetAfter until all actions are left again
 */
public record Limit(boolean allowed, long limit, long remaining, Duration retryAfter, Duration resetAfter) {}
