# frozen_string_literal: true

require "redis"

# Locks, semaphores and rate limits of a Latchkey server, through redis-rb. Times are seconds, which may be fractions.
#
#   locks = LatchkeyLocks::Locks.new(Redis.new)
#   locks.acquire("jobs", lease: 30, wait: 10) { |lock| resource.write(value, fence: lock.fence) }
module LatchkeyLocks
  # What this package raises itself; errors of the connection are redis-rb's.
  class Error < StandardError
  end

  # Others hold it, and the time to wait is over.
  class NotGranted < Error
    # Who; nil where others only stand in line before, and for permits.
    attr_reader :holder

    def initialize(key, holder = nil)
      super(holder ? "#{key} is held by #{holder}" : "#{key} is not free")
      @holder = holder
    end
  end

  # The grant has ended: by its lease, its session, or somebody's hand.
  class LockLost < Error
  end

  # An error of the block's own tells more than one of the release, which it gets as its lock_error.
  module LockErrorBeside
    attr_accessor :lock_error
  end

  # The answer to a rate. retry_after is nil if it was allowed, or never will be.
  Limit = Struct.new(:allowed, :limit, :remaining, :retry_after, :reset_after) do
    alias_method :allowed?, :allowed
  end
end

require "latchkey_locks/connections"
require "latchkey_locks/grant"

module LatchkeyLocks
  # Takes locks. It may be used by several threads, as what it gives.
  class Locks
    # client: a Redis, also one of sentinels or of a cluster, or a ConnectionPool of them.
    def initialize(client)
      @connections = Connections.new(client)
    end

    # Takes a lock, or several at once. With a block it gives the block's value, and releases the Lock at its end; else it gives
    # the Lock.
    #
    # lease: until it ends unless it is renewed. wait: how long to wait in the server's queue; 0: it does not wait; nil: for ever.
    # shared: for reading, beside other readers. grace: a session: it ends so long after its connection has closed, and the lease
    # counts from the last request over that connection. owner: who asks, a random name if nil; whoever asks with the same name
    # gets the same grant. Errors: NotGranted, those of redis-rb.
    def acquire(*keys, lease: 30, wait: nil, shared: false, grace: nil, owner: nil, &work)
      Lock.new(@connections, keys, owner, lease, grace, shared).take(wait, &work)
    end

    # Takes `count` permits of a semaphore of which `limit` are held at most. See acquire.
    def permits(key, limit, count = 1, lease: 30, wait: nil, grace: nil, owner: nil, &work)
      Permits.new(@connections, key, owner, lease, grace, limit, count).take(wait, &work)
    end

    # Whether `quantity` actions are allowed: `count` in `period` seconds, and `burst` more at once. Gives a Limit.
    def throttle(key, count, period, burst: 0, quantity: 1)
      limited, most, remaining, retry_after, reset_after =
        @connections.client.call("CL.THROTTLE", key, burst, count, period, quantity)
      Limit.new(limited.zero?, most, remaining, retry_after.negative? ? nil : retry_after, reset_after)
    end
  end
end
