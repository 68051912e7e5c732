# frozen_string_literal: true

require "monitor"
require "securerandom"

module LatchkeyLocks
  # What a lock and permits have in common: one grant, which ends with release.
  class Grant
    # Bounds one request, so that a server that vanished is noticed. Each further one begins at the end of the queue.
    LONGEST_WAIT = 60
    # How many connections may break one after the other, before an acquisition gives up.
    TRIES = 3
    # How often a request follows its key to another node.
    REDIRECTIONS = 16

    # The number of this grant. Hand it to whatever is protected.
    attr_reader :fence
    attr_reader :key, :owner

    def initialize(connections, key, owner, lease, grace)
      @connections, @key, @owner, @lease, @grace = connections, key, owner || SecureRandom.hex(16), lease, grace
      @node = @own = @fence = nil
      @until = 0
      @is_over = false
      @one, @pause, @ended = Monitor.new, Mutex.new, ConditionVariable.new
    end

    # Seconds for which this is held at least. It counts from before the request, by a clock that nobody sets.
    def left
      [0, @until - now].max
    end

    # Lets the lease last so long from now on, at least; nil: as long as at first. LockLost: it has ended.
    def renew(lease = nil)
      lease ||= @lease
      began = now
      renewals(ms(lease)).each do |request, expected|
        reply, = twice(request)
        raise lost if reply != expected
      end
      @until = [@until, began + lease].max unless @is_over
    end

    # Gives it back. keep: nobody gets the lock for so long. LockLost: it had ended before.
    def release(keep: 0)
      @pause.synchronize do
        @is_over = true
        @ended.broadcast
      end
      is_lost = releases(keep).map do |request, least|
        # Where it was repeated, the first may have done it, and what the second says of a loss means nothing.
        reply, is_repeated = twice(request)
        !is_repeated && reply < least
      end
      raise lost if is_lost.any?
    ensure
      @until = 0
      close
    end

    # Binds the session to its connection, a new one if that broke; whether there was something to bind.
    def attach
      # Whoever asks over a new connection has attached it already.
      twice(["LOCK.ATTACH", @owner]).first.positive?
    end

    # Renews in a thread of its own, three times in a lease or `every` so many seconds. The block is called once with the error, if
    # this is lost, or if nothing was heard of the server until the lease was over. It ends with the release.
    def watch(every = nil, &on_lost)
      Thread.new do
        loop do
          # A wait that wakes too early renews too early, which does no harm.
          @pause.synchronize { @ended.wait(@pause, [every || @lease / 3.0, [0.001, left].max].min) unless @is_over }
          break if @is_over

          begin
            renew
          rescue LockLost, *REPLIES, *BREAKS => error
            break if @is_over
            break on_lost&.call(error.is_a?(LockLost) ? error : lost) if error.is_a?(LockLost) || left.zero?
          end
        end
      end
      self
    end

    def inspect
      "#<#{self.class} #{@key} #{@owner} #{@fence}>"
    end

    # For Locks alone.
    def take(wait, &work)
      # What another thread raises here (as Timeout does) comes while a reply is waited for, or at the end: not between the grant
      # and the block.
      result = Thread.handle_interrupt(Object => :on_blocking) do
        acquire_or_abandon(wait)
        work ? use(&work) : self
      end
      is_handed_over = true
      result
    ensure
      abandon if @fence && !is_handed_over && !@is_over
    end

    private

    def use
      Thread.handle_interrupt(Object => :immediate) { yield self }
    rescue Exception => error # Whatever it is, it goes on.
      release_beside(error)
      raise
    ensure
      release unless @is_over
    end

    def release_beside(error)
      release unless @is_over
    rescue Error, *REPLIES, *BREAKS => failed
      error.extend(LockErrorBeside).lock_error = failed unless error.frozen?
    end

    def acquire_or_abandon(wait)
      acquire(wait)
      is_settled = true
    rescue NotGranted, *REPLIES
      is_settled = true
      raise
    ensure
      # Else it was interrupted, or the connection broke: nobody will release what may have been granted.
      abandon unless is_settled
      close unless @fence
    end

    def acquire(wait)
      request = question
      request += ["SESSION", "GRACE", ms(@grace)] if @grace
      last = wait && now + wait
      block = broken = 0
      loop do
        began = now
        begin
          reply = ask(block.positive? ? request + ["BLOCK", ms(block)] : request, block, broken.positive?)
        rescue *BREAKS
          # It may have been granted. The same owner that asks again finds its grant, or stands in the queue anew.
          raise if (broken += 1) == TRIES

          block = 0
          next
        end
        broken = 0
        is_granted = reply[0] != 0
        return @until = began + read(reply) if is_granted && now - began <= @lease / 10.0

        # A lease that began in a long wait is measured by asking again, which gets the same grant.
        block = is_granted ? 0 : [LONGEST_WAIT, last ? last - now : LONGEST_WAIT].min
        raise NotGranted.new(@key, holder(reply)) unless is_granted || block.positive?
      end
    end

    # Gives back what may have been granted although nobody got to know: without a fence, as that is unknown too.
    def abandon
      releases(0).each { |request,| twice(request) }
    rescue *REPLIES, *BREAKS
      # It ends with its lease.
    end

    # Asks again if the connection breaks: requests of locks may be repeated. Gives the reply, and whether it is the second.
    def twice(request)
      [ask(request), false]
    rescue *BREAKS
      # Those that rest may all have broken.
      [ask(request, 0, true), true]
    end

    # One request, which follows its key to another node of a cluster.
    def ask(request, seconds = 0, is_fresh = false)
      redirections = 0
      begin
        return @connections.ask(@node, request, seconds, is_fresh) unless @grace

        @one.synchronize { ask_session(request, seconds) }
      rescue *REPLIES => error
        node = Connections.moved(error)
        raise if node.nil? || (redirections += 1) > REDIRECTIONS

        close
        @node = node
        retry
      end
    end

    # A session ends with its connection, so it has one of its own.
    def ask_session(request, seconds)
      unless @own
        @own = @connections.open(@node)
        Connections.ask(@own, ["LOCK.ATTACH", @owner], 0) if @fence
      end
      is_whole = false
      reply = Connections.ask(@own, request, seconds)
      is_whole = true
      reply
    rescue *REPLIES
      is_whole = true
      raise
    ensure
      close unless is_whole
    end

    def close
      @one.synchronize do
        @own&.close
        @own = nil
      end
    end

    def lost
      @until = 0
      LockLost.new("#{@key} is no longer held by #{@owner}")
    end

    def now
      Process.clock_gettime(Process::CLOCK_MONOTONIC)
    end

    # Rounded up: a wait is no shorter than it was told, and no lease is none.
    def ms(seconds)
      [1, (seconds * 1000).ceil].max
    end
  end

  # A lock that is held, several of them, or a reader's part of one.
  class Lock < Grant
    attr_reader :keys

    def initialize(connections, keys, owner, lease, grace, shared)
      @keys, @shared = keys.flatten, shared
      super(connections, @keys.first, owner, lease, grace)
    end

    # Whether the server still says so.
    def held?
      guards.all? { |request| twice(request).first == 1 }
    end

    # Adds guards to a transaction, which is what the block of `multi` gets: unless this lock is held then, it does nothing, and
    # `multi` gives nil.
    def guard(transaction)
      guards.each { |request| transaction.call(*request) }
      transaction
    end

    private

    # redis-rb 4.8 knows commands in small letters when it looks for the keys of a transaction.
    def guards
      @keys.map { |key| ["lock.guard", key, @owner, "FENCE", @fence] }
    end

    def question
      words = @keys.one? ? ["LOCK.ACQUIRE", @key, @owner] : ["LOCK.MACQUIRE", @keys.size, *@keys, @owner]
      [*words, "PX", ms(@lease), *("SHARED" if @shared)]
    end

    def read(reply)
      @fence = reply.first
      reply.last / 1000.0
    end

    def holder(reply)
      reply[3] unless reply[3].empty?
    end

    def renewals(lease_ms)
      [[["LOCK.RENEW", @keys.size, *@keys, @owner, "PX", lease_ms], [@fence] * @keys.size]]
    end

    def releases(keep)
      rest = [*(["FENCE", @fence] if @fence), *(["KEEP", ms(keep)] if keep.positive?)]
      @keys.map { |key| [["LOCK.RELEASE", key, @owner, *rest], 0] }
    end
  end

  # Permits of one request that are held.
  class Permits < Grant
    # permits: their names. free: how many were free after the grant.
    attr_reader :permits, :free

    def initialize(connections, key, owner, lease, grace, limit, count)
      @limit, @count, @permits = limit, count, []
      super(connections, key, owner, lease, grace)
    end

    private

    def question
      ["SEM.ACQUIRE", @key, @owner, "LIMIT", @limit, "PX", ms(@lease), "COUNT", @count]
    end

    def read(reply)
      @permits, @fence, @free = reply
      @lease
    end

    def holder(_)
      nil
    end

    def renewals(lease_ms)
      @permits.map { |permit| [["SEM.RENEW", @key, permit, "PX", lease_ms], 1] }
    end

    def releases(_)
      [[["SEM.RELEASE", @key, *@permits], @permits.size]]
    end

    def abandon
      # Their names are known by asking again.
      reply, = twice(question)
      return if reply[0] == 0

      read(reply)
      super
    rescue *REPLIES, *BREAKS
      # They end with their lease.
    end
  end
end
