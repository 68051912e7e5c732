# Runs one client of Redis's own test harness, unchanged, for tests/peer/suite, which plays the harness's server:
#   tclsh harness.tcl --client PORT ... (in a copy of the suite's tree)
# One behaviour is added: an exception between two tests is reported and ends its start_server block, not the file.

rename source suite_source
proc source {args} {
    uplevel 1 [list suite_source {*}$args]
    set file [lindex $args end]
    if {$file eq "tests/support/server.tcl"} guard_start_server
    if {$file eq "tests/support/test.tcl"} guard_test
}

# Inside of a test, exceptions of start_server are the test's (which durable keeps from ending the client); outside of
# one they would end the client, or, durable, take the block's outer server with them: so durable is for tests alone.
proc guard_start_server {} {
    rename start_server suite_start_server
    proc start_server {options {code undefined}} {
        set kept [list $::tags $::singledb $::durable]
        set ::durable 0
        set failed [catch {uplevel 1 [list suite_start_server $options $code]} result how]
        lassign $kept ::tags ::singledb ::durable
        if {!$failed} {return $result}
        if {$::cur_test ne ""} {return -options $how $result}
        send_data_packet $::test_server_fd err "(outside a test) in $::curfile\n$result\n$::errorInfo"
    }
}

proc guard_test {} {
    rename test suite_test
    proc test {args} {
        set before [list $::durable $::cur_test]
        set ::durable 1
        try {
            uplevel 1 [list suite_test {*}$args]
        } finally {
            lassign $before ::durable ::cur_test
        }
    }
}

set argv0 tests/test_helper.tcl
set ::cur_test ""
suite_source tests/test_helper.tcl
