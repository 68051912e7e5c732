#compdef latchkey
# Completions of latchkey(1) for zsh. Generated from the table of parameters, src/config/params.rs.
_arguments \
  '--check-config[Reports every fault that would prevent a start]:file:_files' \
  '--check-system[Reports unfavourable settings of the machine]:file:_files' \
  '--check-rdb[Checks an RDB file]:file:_files' \
  '--check-aof[Checks an append-only file or its manifest]:file:_files' \
  '--backup[Takes a snapshot of a running server]:file:_files' \
  '--restore[Puts a snapshot into the data folder]:file:_files' \
  '--move[Moves from a running server to another one]:file:_files' \
  '--completions[Prints the completions for a shell]:shell:(bash zsh fish)' \
  '--version[Prints the version]' \
  '--help[Prints a summary]' \
  '*--bind[Addresses on which TCP clients are accepted]:bind:_files' \
  '*--port[Port for TCP clients]:port:_files' \
  '*--unixsocket[Path of a Unix socket on which clients are accepted]:unixsocket:_files' \
  '*--unixsocketperm[Permissions of the Unix socket]:unixsocketperm:_files' \
  '*--protected-mode[Refuses clients from other hosts while the default user has no password]:protected-mode:(yes no)' \
  '*--tcp-backlog[Length of the queue of connections not accepted yet]:tcp-backlog:_files' \
  '*--timeout[Seconds after which an idle client is closed]:timeout:_files' \
  '*--tcp-keepalive[Seconds between TCP keepalive probes]:tcp-keepalive:_files' \
  '*--bind-source-addr[Address from which connections to other servers are made]:bind-source-addr:_files' \
  '*--socket-mark-id[Mark (SO_MARK) of every socket, for packet filters]:socket-mark-id:_files' \
  '*--max-new-connections-per-cycle[Maximum number of new connections accepted in a turn of the loop]:max-new-connections-per-cycle:_files' \
  '*--max-new-tls-connections-per-cycle[Maximum number of new TLS connections accepted in a turn of the loop]:max-new-tls-connections-per-cycle:_files' \
  '*--unixsocketgroup[Group of the Unix socket'\''s file, by name or number]:unixsocketgroup:_files' \
  '*--mptcp[Multipath TCP]:mptcp:(no)' \
  '*--rdma-port[Port for RDMA]:rdma-port:(0)' \
  '*--rdma-bind[Addresses for RDMA]:rdma-bind:_files' \
  '*--rdma-rx-size[Bytes of an RDMA receive buffer]:rdma-rx-size:_files' \
  '*--rdma-completion-vector[Completion vector of RDMA]:rdma-completion-vector:_files' \
  '*--http-port[Port for HTTP\: probes, metrics, and a page for operators (docs/http.md)]:http-port:_files' \
  '*--http-bind[Addresses on which HTTP is served]:http-bind:_files' \
  '*--http-tls[Uses TLS for HTTP, with the server'\''s certificate and tls-auth-clients]:http-tls:(yes no)' \
  '*--http-auth[Asks for a user'\''s password on loopback addresses too]:http-auth:(yes no)' \
  '*--http-hosts[Host names under which the page and its data are served, besides localhost and addresses]:http-hosts:_files' \
  '*--instance-name[This server'\''s name at the head of the page]:instance-name:_files' \
  '*--page-keys[Patterns of keys that are shown as queues and get labels in metrics, at most 100 keys]:page-keys:_files' \
  '*--tls-port[Port for TLS clients]:tls-port:_files' \
  '*--tls-cert-file[File with the certificate, in PEM]:tls-cert-file:_files' \
  '*--tls-key-file[File with the private key, in PEM]:tls-key-file:_files' \
  '*--tls-key-file-pass[Passphrase of the private key]:tls-key-file-pass:_files' \
  '*--tls-client-cert-file[File with the certificate shown to other servers, if it is not the same]:tls-client-cert-file:_files' \
  '*--tls-client-key-file[File with the key of that certificate]:tls-client-key-file:_files' \
  '*--tls-client-key-file-pass[Passphrase of that key]:tls-client-key-file-pass:_files' \
  '*--tls-dh-params-file[File with Diffie-Hellman parameters]:tls-dh-params-file:_files' \
  '*--tls-ca-cert-file[File with the certificates of trusted authorities]:tls-ca-cert-file:_files' \
  '*--tls-ca-cert-dir[Directory with files of such certificates]:tls-ca-cert-dir:_files' \
  '*--tls-auth-clients[Whether clients must show a certificate]:tls-auth-clients:(no yes optional)' \
  '*--tls-auth-clients-user[Field of a client'\''s certificate that names its user, who then needs no password]:tls-auth-clients-user:(CN URI off)' \
  '*--tls-replication[Uses TLS for the connection to the primary]:tls-replication:(yes no)' \
  '*--tls-cluster[Uses TLS for connections that MIGRATE opens]:tls-cluster:(yes no)' \
  '*--tls-protocols[Versions of TLS that are accepted, separated by spaces, such as "TLSv1.2 TLSv1.3"]:tls-protocols:_files' \
  '*--tls-ciphers[Ciphers of TLS 1.2, in OpenSSL'\''s notation]:tls-ciphers:_files' \
  '*--tls-ciphersuites[Cipher suites of TLS 1.3]:tls-ciphersuites:_files' \
  '*--tls-prefer-server-ciphers[Lets the server choose the cipher, not the client]:tls-prefer-server-ciphers:(yes no)' \
  '*--tls-session-caching[Lets clients resume a session]:tls-session-caching:(yes no)' \
  '*--tls-session-cache-size[Maximum number of sessions kept]:tls-session-cache-size:_files' \
  '*--tls-session-cache-timeout[Seconds for which a session is kept]:tls-session-cache-timeout:_files' \
  '*--tls-auto-reload-interval[Seconds between checks whether one of the files was replaced; if so, they are loaded again]:tls-auto-reload-interval:_files' \
  '*--tls-groups[Groups for the exchange of keys]:tls-groups:_files' \
  '*--tls-alt-cert-file[A second certificate, of another kind of key]:tls-alt-cert-file:_files' \
  '*--tls-alt-key-file[Its private key]:tls-alt-key-file:_files' \
  '*--tls-alt-key-file-pass[Password of this key]:tls-alt-key-file-pass:_files' \
  '*--compatible-with[Server and version to follow where servers contradict each other; its name and version are reported too]:compatible-with:(redis-7.0 redis-7.2 redis-8 valkey-9)' \
  '*--redis-version[Version that INFO, HELLO and LOLWUT report, for clients that check it before they use a feature]:redis-version:_files' \
  '*--daemonize[Runs in the background]:daemonize:(yes no)' \
  '*--supervised[Informs a supervisor once the server is ready]:supervised:(upstart systemd auto no)' \
  '*--pidfile[File with the process ID while the server runs]:pidfile:_files' \
  '*--loglevel[Minimum level of messages that are logged]:loglevel:(debug verbose notice warning nothing)' \
  '*--logfile[File for the log]:logfile:_files' \
  '*--log-format[Format of log lines]:log-format:(legacy logfmt json)' \
  '*--log-timestamp-format[Format of times in log lines]:log-timestamp-format:(legacy iso8601 milliseconds)' \
  '*--hide-user-data-from-log[Keeps keys and names of clients and users out of the log]:hide-user-data-from-log:(yes no)' \
  '*--syslog-enabled[Logs to syslog too]:syslog-enabled:(yes no)' \
  '*--syslog-ident[The server'\''s name in syslog]:syslog-ident:_files' \
  '*--syslog-facility[Facility of messages to syslog]:syslog-facility:(user local0 local1 local2 local3 local4 local5 local6 local7)' \
  '*--crash-log-enabled[Writes a report to the log on a crash]:crash-log-enabled:(yes no)' \
  '*--crash-memcheck-enabled[Tests memory on a crash]:crash-memcheck-enabled:(yes no)' \
  '*--databases[Number of databases]:databases:_files' \
  '*--always-show-logo[Shows the logo at start even without a terminal]:always-show-logo:(yes no)' \
  '*--set-proc-title[Shows addresses and mode in the process'\'' title]:set-proc-title:(yes no)' \
  '*--proc-title-template[The process'\'' title]:proc-title-template:_files' \
  '*--locale-collate[Locale for the order of SORT ]:locale-collate:_files' \
  '*--ignore-warnings[Warnings about the kernel'\''s state that do not prevent the start]:ignore-warnings:_files' \
  '*--enable-debug-command[Clients that may use DEBUG]:enable-debug-command:(no yes local)' \
  '*--enable-module-command[Clients that may use MODULE]:enable-module-command:(no yes local)' \
  '*--enable-protected-configs[Clients that may change protected parameters by CONFIG SET\: dir, dbfilename]:enable-protected-configs:(no yes local)' \
  '*--hz[Runs of background work per second]:hz:_files' \
  '*--dynamic-hz[Raises hz with the number of clients]:dynamic-hz:(yes no)' \
  '*--shutdown-timeout[Seconds for which a shutdown waits for lagging replicas]:shutdown-timeout:_files' \
  '*--shutdown-on-sigint[Options of a shutdown on SIGINT]:shutdown-on-sigint:_files' \
  '*--shutdown-on-sigterm[Options of a shutdown on SIGTERM]:shutdown-on-sigterm:_files' \
  '*--requirepass[Password of the default user]:requirepass:_files' \
  '*--aclfile[File with ACL users, instead of user directives]:aclfile:_files' \
  '*--acllog-max-len[Maximum number of entries in ACL LOG]:acllog-max-len:_files' \
  '*--acl-pubsub-default[Channels that a new ACL user may use]:acl-pubsub-default:(allchannels resetchannels)' \
  '*--maxclients[Maximum number of clients]:maxclients:_files' \
  '*--maxclients-reserved[Places of maxclients kept for clients of the Unix socket and of loopback addresses, so that an operator can log in when the others are taken]:maxclients-reserved:_files' \
  '*--priority-subnets[Networks whose clients get the places of maxclients-reserved]:priority-subnets:_files' \
  '*--priority-preemptive-poll-interval-us[Microseconds after which a long command lets such clients be served]:priority-preemptive-poll-interval-us:_files' \
  '*--client-output-buffer-limit[Bytes of unread replies at which a client is closed\: at once at the hard limit, after some seconds above the soft limit]:client-output-buffer-limit:_files' \
  '*--client-query-buffer-limit[Maximum bytes of a client'\''s pending requests]:client-query-buffer-limit:_files' \
  '*--proto-max-bulk-len[Maximum bytes of a string in a request]:proto-max-bulk-len:_files' \
  '*--tracking-table-max-keys[Maximum number of keys remembered for client-side caching]:tracking-table-max-keys:_files' \
  '*--busy-reply-threshold[Milliseconds after which a script or another long command makes other clients get BUSY errors]:busy-reply-threshold:_files' \
  '*--busy-script-policy[Treatment of a script that has run for busy-reply-threshold\: it continues (wait), is killed if it has written nothing (kill-readonly), or is killed in any case and its writes are rolled back (rollback)]:busy-script-policy:(wait kill-readonly rollback)' \
  '*--script-undo-limit[Bytes of old values that are copied while a script runs, for SCRIPT KILL ROLLBACK]:script-undo-limit:_files' \
  '*--script-memory-limit[Maximum bytes of memory that scripts hold in Lua; a script that needs more gets an error]:script-memory-limit:_files' \
  '*--script-source-limit[Maximum bytes of the source of a script or library]:script-source-limit:_files' \
  '*--script-cache-persist[Sources of scripts survive restarts and failovers\: those loaded, and those that EVAL has sent more than once]:script-cache-persist:(yes no)' \
  '*--script-cache-persist-limit[Maximum bytes of the sources that survive; the last used ones do]:script-cache-persist-limit:_files' \
  '*--maxmemory[Bytes that data may take; above that, maxmemory-policy applies]:maxmemory:_files' \
  '*--maxmemory-policy[Which keys are evicted above maxmemory\: of all keys (allkeys-) or of those with a time to live (volatile-), the least recently used (lru) or changed (lrm), the least frequently used (lfu), random ones (random) or the next to expire (ttl)]:maxmemory-policy:(volatile-lru volatile-lfu volatile-random volatile-ttl allkeys-lru allkeys-lfu allkeys-random noeviction volatile-lrm allkeys-lrm)' \
  '*--maxmemory-samples[Keys sampled for each eviction]:maxmemory-samples:_files' \
  '*--maxmemory-eviction-tenacity[How long eviction may take before clients are served again\: from 0, the shortest time, to 100, no limit]:maxmemory-eviction-tenacity:_files' \
  '*--maxmemory-protect[Patterns of keys that are never evicted]:maxmemory-protect:_files' \
  '*--maxmemory-scripts[Bytes that sources of scripts may take]:maxmemory-scripts:_files' \
  '*--maxmemory-clients[Bytes that the buffers of all clients may take; above that, the largest clients are closed]:maxmemory-clients:_files' \
  '*--lfu-log-factor[How slowly LFU'\''s access counter saturates\: at 10, after about a million accesses]:lfu-log-factor:_files' \
  '*--lfu-decay-time[Minutes after which LFU'\''s access counter is decremented]:lfu-decay-time:_files' \
  '*--active-expire-effort[Effort to find expired keys]:active-expire-effort:_files' \
  '*--lazyfree-lazy-eviction[Frees evicted values in the background, and replicates the deletion as UNLINK, not DEL]:lazyfree-lazy-eviction:(yes no)' \
  '*--lazyfree-lazy-expire[The same for expired values]:lazyfree-lazy-expire:(yes no)' \
  '*--lazyfree-lazy-server-del[Frees values that commands replace in the background, as it always does here]:lazyfree-lazy-server-del:(yes no)' \
  '*--lazyfree-lazy-user-del[Makes DEL work like UNLINK, as it always does here; GETDEL is replicated as UNLINK]:lazyfree-lazy-user-del:(yes no)' \
  '*--lazyfree-lazy-user-flush[Makes FLUSHALL, FLUSHDB, SCRIPT FLUSH and FUNCTION FLUSH asynchronous unless SYNC is given]:lazyfree-lazy-user-flush:(yes no)' \
  '*--activerehashing[Resizes hash tables in idle time]:activerehashing:(yes no)' \
  '*--activedefrag[Moves values in memory to reduce fragmentation]:activedefrag:(yes no)' \
  '*--active-defrag-cycle-us[Microseconds of a cycle of defragmentation]:active-defrag-cycle-us:_files' \
  '*--active-defrag-ignore-bytes[Bytes of fragmentation below which nothing is moved]:active-defrag-ignore-bytes:_files' \
  '*--active-defrag-threshold-lower[Percentage of fragmentation at which defragmentation starts]:active-defrag-threshold-lower:_files' \
  '*--active-defrag-threshold-upper[Percentage of fragmentation at which defragmentation works hardest]:active-defrag-threshold-upper:_files' \
  '*--active-defrag-cycle-min[Minimum percentage of CPU time for defragmentation]:active-defrag-cycle-min:_files' \
  '*--active-defrag-cycle-max[Maximum percentage of CPU time for defragmentation]:active-defrag-cycle-max:_files' \
  '*--active-defrag-max-scan-fields[Elements above which a collection is moved in several steps]:active-defrag-max-scan-fields:_files' \
  '*--jemalloc-bg-thread[Lets the allocator return memory to the system from a background thread]:jemalloc-bg-thread:(yes no)' \
  '*--disable-thp[Disables transparent huge pages for the process\: they cost memory while a child process saves]:disable-thp:(yes no)' \
  '*--oom-score-adj[How oom-score-adj-values are used\: added to the score at start (relative, yes), as they are (absolute), or not at all (no)]:oom-score-adj:(no yes relative absolute)' \
  '*--oom-score-adj-values[Scores by which the kernel chooses the process to kill when memory runs out]:oom-score-adj-values:_files' \
  '*--key-memory-histograms[Counts keys by their size]:key-memory-histograms:(yes no)' \
  '*--hash-max-listpack-entries[Maximum number of fields in a hash that is a listpack]:hash-max-listpack-entries:_files' \
  '*--hash-max-listpack-value[Maximum bytes of a field or value in a hash that is a listpack]:hash-max-listpack-value:_files' \
  '*--list-max-listpack-size[Maximum size of a node of a list\: elements if positive; -1 to -5 are 4, 8, 16, 32 and 64 KB]:list-max-listpack-size:_files' \
  '*--list-compress-depth[Nodes at each end of a list that stay uncompressed]:list-compress-depth:_files' \
  '*--set-max-intset-entries[Maximum number of integers in a set that is an intset]:set-max-intset-entries:_files' \
  '*--set-max-listpack-entries[Maximum number of elements in a set that is a listpack]:set-max-listpack-entries:_files' \
  '*--set-max-listpack-value[Maximum bytes of an element in a set that is a listpack]:set-max-listpack-value:_files' \
  '*--zset-max-listpack-entries[Maximum number of elements in a sorted set that is a listpack]:zset-max-listpack-entries:_files' \
  '*--zset-max-listpack-value[Maximum bytes of an element in a sorted set that is a listpack]:zset-max-listpack-value:_files' \
  '*--hll-sparse-max-bytes[Maximum bytes of a HyperLogLog that is sparse]:hll-sparse-max-bytes:_files' \
  '*--stream-node-max-bytes[Maximum bytes of a node of a stream]:stream-node-max-bytes:_files' \
  '*--stream-node-max-entries[Maximum number of entries in a node of a stream]:stream-node-max-entries:_files' \
  '*--stream-idmp-duration[Seconds for which a stream remembers what producers have added]:stream-idmp-duration:_files' \
  '*--stream-idmp-maxsize[Entries that a stream remembers of each producer]:stream-idmp-maxsize:_files' \
  '*--vset-force-single-threaded-execution[Runs commands of vector sets on one thread]:vset-force-single-threaded-execution:(yes no)' \
  '*--hash-rdb-load-min-template-entries[Hashes of a file that share the names of their fields, at least, for them to do so in memory]:hash-rdb-load-min-template-entries:_files' \
  '*--hash-rdb-load-max-template-entries[The most fields of hashes that share their names in memory]:hash-rdb-load-max-template-entries:_files' \
  '*--hash-rdb-load-template-disassembly-threshold[When hashes of a file no longer share the names of their fields]:hash-rdb-load-template-disassembly-threshold:_files' \
  '*--bitmap-default-roaring[Stores new bitmaps compressed]:bitmap-default-roaring:(yes no)' \
  '*--notify-keyspace-events[Which keyspace events are published\: to keyspace channels (K), to keyevent channels (E), and those about fields of hashes to the channels of Redis 8.8, by key (S), event (T), field (I), or event and key (V); of generic commands (g), strings ($), lists (l), sets (s), hashes (h), sorted sets (z), streams (t), modules (d), of expired keys (x), evicted keys (e), missed keys (m), new keys (n), values that are replaced (o), and get another type thereby (c)]:notify-keyspace-events:_files' \
  '*--slowlog-log-slower-than[Microseconds that a command must take to be added to the slow log]:slowlog-log-slower-than:_files' \
  '*--slowlog-max-len[Maximum number of entries in the slow log]:slowlog-max-len:_files' \
  '*--commandlog-request-larger-than[Bytes that a request must have to be added to the command log]:commandlog-request-larger-than:_files' \
  '*--commandlog-large-request-max-len[Maximum number of large requests in the command log]:commandlog-large-request-max-len:_files' \
  '*--commandlog-reply-larger-than[Bytes that a reply must have to be added to the command log]:commandlog-reply-larger-than:_files' \
  '*--commandlog-large-reply-max-len[Maximum number of large replies in the command log]:commandlog-large-reply-max-len:_files' \
  '*--latency-monitor-threshold[Milliseconds that an event must take to be added to the latency monitor]:latency-monitor-threshold:_files' \
  '*--latency-tracking[Keeps a histogram of execution times for each command]:latency-tracking:(yes no)' \
  '*--latency-tracking-info-percentiles[Percentiles of those times in INFO latencystats]:latency-tracking-info-percentiles:_files' \
  '*--slowlog-entry-max-argc[Arguments of a request in the slow log]:slowlog-entry-max-argc:_files' \
  '*--slowlog-entry-max-string-len[Bytes of such an argument]:slowlog-entry-max-string-len:_files' \
  '*--hotkeys-top-k[Keys that are counted as the hottest]:hotkeys-top-k:_files' \
  '*--hotkeys-sampling-percentage[Percentage of requests that count for this]:hotkeys-sampling-percentage:_files' \
  '*--dir[Directory of snapshots and append-only files; other relative paths start here too]:dir:_files -/' \
  '*--dbfilename[File name of the snapshot]:dbfilename:_files' \
  '*--save[Pairs of seconds and changes\: a snapshot is saved when both have been reached since the last one]:save:_files' \
  '*--stop-writes-on-bgsave-error[Refuses writes after a background save failed, until one succeeds]:stop-writes-on-bgsave-error:(yes no)' \
  '*--rdbcompression[Compresses strings in snapshots]:rdbcompression:(yes no)' \
  '*--rdbchecksum[Writes and checks a checksum at the end of snapshots]:rdbchecksum:(yes no)' \
  '*--sanitize-dump-payload[Checks payloads of RESTORE and of snapshots in depth]:sanitize-dump-payload:(no yes clients)' \
  '*--rdb-del-sync-files[Deletes snapshots made for replication if no other persistence is enabled]:rdb-del-sync-files:(yes no)' \
  '*--rdb-save-incremental-fsync[Syncs snapshots to disk in parts while they are written]:rdb-save-incremental-fsync:(yes no)' \
  '*--rdb-version-check[Whether snapshots of unknown versions are refused, or with relaxed read as far as their types are known]:rdb-version-check:(strict relaxed)' \
  '*--backupdirname[Folder for the files of BACKUP]:backupdirname:_files' \
  '*--backup-sealed-ttl[Seconds after which a finished backup is deleted]:backup-sealed-ttl:_files' \
  '*--forkless-infrastructure-enabled[Allows snapshots without a child process; here all are]:forkless-infrastructure-enabled:(yes no)' \
  '*--bgsave-default-method[How BGSAVE saves; here always without a child process]:bgsave-default-method:(fork forkless)' \
  '*--appendonly[Logs every write]:appendonly:(yes no)' \
  '*--appendfilename[Prefix of the names of the append-only files]:appendfilename:_files' \
  '*--appenddirname[Directory of the append-only files, within dir]:appenddirname:_files' \
  '*--appendfsync[When the AOF is synced to disk\: before each reply to a write (always), every second (everysec), or when the system decides (no)]:appendfsync:(everysec always no)' \
  '*--no-appendfsync-on-rewrite[Does not sync the AOF to disk while a snapshot or rewrite is written]:no-appendfsync-on-rewrite:(yes no)' \
  '*--auto-aof-rewrite-percentage[Percentage by which the AOF must have grown before it is rewritten]:auto-aof-rewrite-percentage:_files' \
  '*--auto-aof-rewrite-min-size[Minimum bytes of an AOF that is rewritten]:auto-aof-rewrite-min-size:_files' \
  '*--aof-load-truncated[Starts although the AOF ends in an incomplete request or transaction, which is cut off]:aof-load-truncated:(yes no)' \
  '*--aof-use-rdb-preamble[Rewrites the AOF as a snapshot; otherwise as commands, which load more slowly]:aof-use-rdb-preamble:(yes no)' \
  '*--aof-timestamp-enabled[Writes times into the AOF, so that it can be cut off at one]:aof-timestamp-enabled:(yes no)' \
  '*--aof-rewrite-incremental-fsync[Syncs a rewritten AOF to disk in parts]:aof-rewrite-incremental-fsync:(yes no)' \
  '*--aof-disable-auto-gc[Keeps the files that a rewrite replaced]:aof-disable-auto-gc:(yes no)' \
  '*--aof-load-corrupt-tail-max-size[Starts although the AOF ends in at most this many bytes from the first damaged request or transaction on, which are cut off]:aof-load-corrupt-tail-max-size:_files' \
  '*--lock-min-replicas[Number of replicas that must acknowledge each grant and renewal of a lock before the reply leaves, if the command does not give its own number (REPLICAS)]:lock-min-replicas:_files' \
  '*--lock-ack-timeout[Milliseconds that such a reply waits before the grant is taken back]:lock-ack-timeout:_files' \
  '*--lock-recovery-delay[Milliseconds for which no lock is granted after a start or a promotion\: the longest lease that may have been lost with the last writes]:lock-recovery-delay:_files' \
  '*--lock-delay[Milliseconds for which a lost lock is granted to nobody\: its lease or session has ended, or it was broken]:lock-delay:_files' \
  '*--lock-max-waiters[Maximum number of clients that wait for locks and permits]:lock-max-waiters:_files' \
  '*--replicaof[The server of which this one is a replica]:replicaof:_files' \
  '*--masterauth[Password for the primary]:masterauth:_files' \
  '*--masteruser[User for the primary]:masteruser:_files' \
  '*--replica-serve-stale-data[Serves reads while the link to the primary is down]:replica-serve-stale-data:(yes no)' \
  '*--replica-read-only[Refuses clients'\'' writes on a replica]:replica-read-only:(yes no)' \
  '*--replica-ignore-maxmemory[Evicts nothing on a replica\: its primary does]:replica-ignore-maxmemory:(yes no)' \
  '*--replica-lazy-flush[Frees the old data in the background before a full synchronisation]:replica-lazy-flush:(yes no)' \
  '*--replica-ignore-disk-write-errors[Continues as a replica if writing to its own disk fails]:replica-ignore-disk-write-errors:(yes no)' \
  '*--replica-priority[Sentinel promotes the replica with the lowest priority]:replica-priority:_files' \
  '*--replica-announced[Whether Sentinel reports this replica to clients]:replica-announced:(yes no)' \
  '*--replica-announce-ip[Address that a replica reports to its primary]:replica-announce-ip:_files' \
  '*--replica-announce-port[Port that a replica reports to its primary]:replica-announce-port:_files' \
  '*--min-replicas-to-write[Minimum number of good replicas for writes; with fewer, writes are refused]:min-replicas-to-write:_files' \
  '*--min-replicas-max-lag[Maximum seconds of lag of a good replica]:min-replicas-max-lag:_files' \
  '*--wait-all-replicas[Number of replicas that could be promoted\: WAIT ALL waits for at least this number, connected or not]:wait-all-replicas:_files' \
  '*--primary-restart-read-only[Seconds for which a server that starts as a primary must have replicas before it accepts writes]:primary-restart-read-only:_files' \
  '*--repl-protect-empty-primary[Sends no snapshot to replicas with data if this primary started without data, or with an older RDB file\: the snapshot would delete theirs]:repl-protect-empty-primary:(yes no)' \
  '*--sentinel-step-down[Stops a primary as soon as sentinels have made a replica of it the primary\: it takes no more writes, and closes clients, which then ask sentinels (docs/failover.md)]:sentinel-step-down:(yes no)' \
  '*--repl-backlog-size[Bytes of the replication backlog, from which reconnecting replicas continue]:repl-backlog-size:_files' \
  '*--repl-backlog-ttl[Seconds without replicas after which the backlog is freed]:repl-backlog-ttl:_files' \
  '*--repl-ping-replica-period[Seconds between pings to replicas]:repl-ping-replica-period:_files' \
  '*--repl-timeout[Seconds of silence after which a replication link is closed]:repl-timeout:_files' \
  '*--repl-disable-tcp-nodelay[Sends small writes to replicas in fewer packets, with up to 40 ms more lag]:repl-disable-tcp-nodelay:(yes no)' \
  '*--repl-diskless-sync[Sends snapshots to replicas without writing a file]:repl-diskless-sync:(yes no)' \
  '*--repl-diskless-sync-delay[Seconds to wait for more replicas before such a snapshot starts]:repl-diskless-sync-delay:_files' \
  '*--repl-diskless-sync-max-replicas[Number of replicas with which such a snapshot starts without waiting]:repl-diskless-sync-max-replicas:_files' \
  '*--repl-diskless-load[When a replica loads the snapshot directly from the socket]:repl-diskless-load:(disabled on-empty-db swapdb flush-before-load flushdb)' \
  '*--dual-channel-replication-enabled[Sends the snapshot and the writes after it over two connections]:dual-channel-replication-enabled:(yes no)' \
  '*--propagation-error-behavior[Reaction to an error in a command from the primary or the append-only file]:propagation-error-behavior:(ignore panic panic-on-replicas)' \
  '*--repl-mptcp[Multipath TCP to the primary]:repl-mptcp:(no)' \
  '*--replica-full-sync-buffer-limit[Bytes of the replication stream that a replica keeps while it loads the snapshot]:replica-full-sync-buffer-limit:_files' \
  '*--repl-throttling-enabled[Slows down clients while replicas lag]:repl-throttling-enabled:(yes no)' \
  '*--repl-compression[Compresses the stream to replicas]:repl-compression:_files' \
  '*--cluster-enabled[Runs as a node of a cluster]:cluster-enabled:(yes no)' \
  '*--cluster-config-file[File in which the node keeps the cluster'\''s state]:cluster-config-file:_files' \
  '*--cluster-node-timeout[Milliseconds of silence after which a node is considered failed]:cluster-node-timeout:_files' \
  '*--cluster-port[Port of the cluster bus]:cluster-port:_files' \
  '*--cluster-databases[Databases in cluster mode]:cluster-databases:_files' \
  '*--cluster-announce-ip[Address reported to other nodes and to clients]:cluster-announce-ip:_files' \
  '*--cluster-announce-hostname[Host name reported to clients]:cluster-announce-hostname:_files' \
  '*--cluster-announce-human-nodename[Name of the node in logs]:cluster-announce-human-nodename:_files' \
  '*--cluster-announce-port[Client port reported to others]:cluster-announce-port:_files' \
  '*--cluster-announce-tls-port[TLS port reported to others]:cluster-announce-tls-port:_files' \
  '*--cluster-announce-bus-port[Bus port reported to others]:cluster-announce-bus-port:_files' \
  '*--cluster-preferred-endpoint-type[Whether clients are redirected to an address, a host name, or the endpoint they used]:cluster-preferred-endpoint-type:(ip hostname unknown-endpoint)' \
  '*--cluster-require-full-coverage[Refuses commands while any slot is unassigned]:cluster-require-full-coverage:(yes no)' \
  '*--cluster-allow-reads-when-down[Serves reads while the cluster is down]:cluster-allow-reads-when-down:(yes no)' \
  '*--cluster-allow-pubsubshard-when-down[Serves shard channels while the cluster is down]:cluster-allow-pubsubshard-when-down:(yes no)' \
  '*--cluster-allow-replica-migration[Lets replicas move to a primary that has none]:cluster-allow-replica-migration:(yes no)' \
  '*--cluster-migration-barrier[Replicas that a primary keeps when one of them moves]:cluster-migration-barrier:_files' \
  '*--cluster-replica-no-failover[Never promotes this replica automatically]:cluster-replica-no-failover:(yes no)' \
  '*--cluster-replica-validity-factor[A replica without a link for more than this many node timeouts is not promoted]:cluster-replica-validity-factor:_files' \
  '*--cluster-link-sendbuf-limit[Bytes in a bus link'\''s send buffer at which it is closed]:cluster-link-sendbuf-limit:_files' \
  '*--cluster-slot-stats-enabled[Collects statistics for each slot]:cluster-slot-stats-enabled:(yes no)' \
  '*--availability-zone[Zone in which the node runs, reported to clients]:availability-zone:_files' \
  '*--cluster-announce-client-ipv4[IPv4 address reported to clients, if it is not the node'\''s]:cluster-announce-client-ipv4:_files' \
  '*--cluster-announce-client-ipv6[The same for IPv6]:cluster-announce-client-ipv6:_files' \
  '*--cluster-announce-client-port[The same for the port]:cluster-announce-client-port:_files' \
  '*--cluster-announce-client-tls-port[The same for the TLS port]:cluster-announce-client-tls-port:_files' \
  '*--cluster-blacklist-ttl[Seconds for which a forgotten node is not added again]:cluster-blacklist-ttl:_files' \
  '*--cluster-config-save-behavior[What happens if the cluster'\''s state cannot be saved]:cluster-config-save-behavior:(sync best-effort)' \
  '*--cluster-manual-failover-timeout[Milliseconds that a manual failover may take]:cluster-manual-failover-timeout:_files' \
  '*--cluster-slot-migration-log-max-len[Maximum number of slot migrations that are remembered]:cluster-slot-migration-log-max-len:_files' \
  '*--slot-migration-max-failover-repl-bytes[Bytes of the stream that may be missing when a slot gets a new owner]:slot-migration-max-failover-repl-bytes:_files' \
  '*--cluster-compatibility-sample-ratio[Percentage of commands that are checked for use that a cluster would refuse]:cluster-compatibility-sample-ratio:_files' \
  '*--cluster-slot-migration-handoff-max-lag-bytes[Bytes of changes with which a move of slots is handed over]:cluster-slot-migration-handoff-max-lag-bytes:_files' \
  '*--cluster-slot-migration-write-pause-timeout[Milliseconds that writes are paused for a hand-over]:cluster-slot-migration-write-pause-timeout:_files' \
  '*--io-threads[Threads for input and output]:io-threads:_files' \
  '*--io-threads-do-reads[Lets these threads read and parse too]:io-threads-do-reads:(yes no)' \
  '*--prefetch-batch-max-size[Keys prefetched together]:prefetch-batch-max-size:_files' \
  '*--server_cpulist[Processors for the server'\''s thread, such as 0-7\:2]:server_cpulist:_files' \
  '*--bio_cpulist[Processors for background threads]:bio_cpulist:_files' \
  '*--aof_rewrite_cpulist[Processors for the child that rewrites the append-only file]:aof_rewrite_cpulist:_files' \
  '*--bgsave_cpulist[Processors for the child that saves a snapshot]:bgsave_cpulist:_files' \
  '*--lookahead[Requests of a client that are parsed ahead]:lookahead:_files' \
  '*--extended-redis-compatibility[Makes a server with another name introduce itself as Redis]:extended-redis-compatibility:(yes no)' \
  '*--import-mode[Suspends expiry and eviction while data is imported\: expired keys are hidden but kept, and importing clients (CLIENT IMPORT-SOURCE) see them]:import-mode:(yes no)' \
  '*--hash-seed[Seed for hashing keys, instead of a random one\: servers with the same seed can continue each other'\''s scans]:hash-seed:_files' \
  '*:file:_files'
