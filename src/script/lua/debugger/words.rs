//! The words of the debugger: those of Redis 7.0.15 and of Valkey 9.1.

/// The words of one of them.
pub(super) struct Words {
    pub help: &'static [&'static str],
    pub unknown: &'static str,
    /// Before a command that the script calls.
    pub request: &'static str,
    /// Why a script stops.
    pub called: &'static str,
    pub unlimited: &'static str,
    /// Before the present length, if `maxlen` is given none. None: it is told as when it is set.
    pub current_length: Option<&'static str>,
    commands: &'static [Named],
}

/// A command, the name by which it is known here, the letters of its short name, and its arguments:
/// the least and the greatest number.
type Named = (&'static str, &'static str, usize, [usize; 2]);

impl Words {
    /// The command of this name, if it takes this many arguments.
    pub fn command(&self, name: &[u8], arguments: usize) -> Option<&'static str> {
        let is_named = |(long, _, letters, [least, most]): &&Named| {
            (name.eq_ignore_ascii_case(long.as_bytes())
                || *letters > 0 && name.eq_ignore_ascii_case(&long.as_bytes()[..*letters]))
                && (*least..=*most).contains(&arguments)
        };
        self.commands.iter().find(is_named).map(|(_, known, ..)| *known)
    }
}

const ANY: [usize; 2] = [0, usize::MAX];
const SOME: [usize; 2] = [1, usize::MAX];

pub(super) static REDIS: Words = Words {
    help: &[
        "Redis Lua debugger help:",
        "[h]elp               Show this help.",
        "[s]tep               Run current line and stop again.",
        "[n]ext               Alias for step.",
        "[c]ontinue           Run till next breakpoint.",
        "[l]ist               List source code around current line.",
        "[l]ist [line]        List source code around [line].",
        "                     line = 0 means: current position.",
        "[l]ist [line] [ctx]  In this form [ctx] specifies how many lines",
        "                     to show before/after [line].",
        "[w]hole              List all source code. Alias for 'list 1 1000000'.",
        "[p]rint              Show all the local variables.",
        "[p]rint <var>        Show the value of the specified variable.",
        "                     Can also show global vars KEYS and ARGV.",
        "[b]reak              Show all breakpoints.",
        "[b]reak <line>       Add a breakpoint to the specified line.",
        "[b]reak -<line>      Remove breakpoint from the specified line.",
        "[b]reak 0            Remove all breakpoints.",
        "[t]race              Show a backtrace.",
        "[e]val <code>        Execute some Lua code (in a different callframe).",
        "[r]edis <cmd>        Execute a Redis command.",
        "[m]axlen [len]       Trim logged Redis replies and Lua var dumps to len.",
        "                     Specifying zero as <len> means unlimited.",
        "[a]bort              Stop the execution of the script. In sync",
        "                     mode dataset changes will be retained.",
        "",
        "Debugger functions you can call from Lua scripts:",
        "redis.debug()        Produce logs in the debugger console.",
        "redis.breakpoint()   Stop execution like if there was a breakpoint in the",
        "                     next line of code.",
    ],
    unknown: "<error> Unknown Redis Lua debugger command or wrong number of arguments.",
    request: "<redis>",
    called: "redis.breakpoint() called",
    unlimited: "<value> replies are unlimited.",
    current_length: None,
    commands: &[
        ("help", "help", 1, ANY),
        ("step", "step", 1, ANY),
        ("next", "next", 1, ANY),
        ("continue", "continue", 1, ANY),
        ("abort", "abort", 1, ANY),
        ("trace", "trace", 1, ANY),
        ("eval", "eval", 1, ANY),
        ("redis", "redis", 1, SOME),
        ("print", "print", 1, ANY),
        ("maxlen", "maxlen", 1, ANY),
        ("break", "break", 1, ANY),
        ("whole", "whole", 1, ANY),
        ("list", "list", 1, ANY),
    ],
};

pub(super) static VALKEY: Words = Words {
    help: &[
        "LUA debugger help:",
        "[h]elp               Show this help.",
        "[max]len [len]       Trim logged replies to len. Specifying zero as",
        "                     <len> means unlimited. If no <len> is specified,",
        "                     the current value is shown. Usage: maxlen [len]",
        "[s]tep               Run current line and stop again.",
        "[n]ext               Alias for step.",
        "[c]ontinue           Run till next breakpoint.",
        "[l]ist [line] [ctx]  List source code around a specific line. If no",
        "                     line is specified the list is printed around the",
        "                     current line. [ctx] specifies how many lines to",
        "                     show before/after [line].",
        "[w]hole              List all source code. Alias for 'list 1 1000000'.",
        "[p]rint [var]        Show the value of the specified variable [var].",
        "                     Can also show global vars KEYS and ARGV. If no",
        "                     [var] is specidied, shows the value of all local",
        "                     variables.",
        "[b]reak [line|-line] Add/Remove a breakpoint to the specified line.",
        "                     If no [line] is specified, it shows all",
        "                     breakpoints. When line = 0, it removes all",
        "                     breakpoints.",
        "[t]race              Show a backtrace.",
        "[e]val <code>        Execute some Lua code (in a different callframe).",
        "[v]alkey <cmd>       Execute a command.",
        "[a]bort              Stop the execution of the script. In sync mode",
        "                     dataset changes will be retained.",
    ],
    unknown: "<error> Unknown debugger command or wrong number of arguments.",
    request: "<command>",
    called: "server.breakpoint() called",
    unlimited: "<value> replies are not truncated.",
    current_length: Some("Current maxlen is "),
    commands: &[
        ("help", "help", 1, [0, 0]),
        ("maxlen", "maxlen", 3, [0, 1]),
        ("step", "step", 1, [0, 0]),
        ("next", "next", 1, [0, 0]),
        ("continue", "continue", 1, [0, 0]),
        ("list", "list", 1, [0, 2]),
        ("whole", "whole", 1, [0, 0]),
        ("print", "print", 1, [0, 1]),
        ("break", "break", 1, [0, 1]),
        ("trace", "trace", 1, [0, 0]),
        ("eval", "eval", 1, SOME),
        ("valkey", "redis", 1, SOME),
        ("redis", "redis", 1, SOME),
        ("server", "redis", 0, SOME),
        ("abort", "abort", 1, [0, 0]),
    ],
};
