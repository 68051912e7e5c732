# frozen_string_literal: true

# The table of cases by latchkey-locks for Ruby: each case over each kind of client.

require "json"
require "latchkey_locks"

HOST = "127.0.0.1"
# redis-rb 5 hands on those of redis-client where sentinels are used.
REPLIES = [Redis::CommandError, *(RedisClient::CommandError if defined?(RedisClient))].freeze

def client_of(over)
  case over
  when "cluster"
    seeds = ["redis://#{HOST}:#{ENV.fetch('CLUSTER').split.first}"]
    return Redis.new(cluster: seeds) if Redis::VERSION < "5"

    # From redis-rb 5 on, a gem of its own.
    require "redis-clustering"
    Redis::Cluster.new(nodes: seeds)
  when "sentinel"
    sentinels = [{ host: HOST, port: ENV.fetch("SENTINEL").to_i }]
    # redis-rb 4 has the name as the host.
    name = Redis::VERSION < "5" ? { host: "primary" } : { name: "primary" }
    Redis.new(**name, sentinels: sentinels, role: :master)
  when "impatient"
    Redis.new(host: HOST, port: ENV.fetch("PORT").to_i, timeout: 0.2)
  else
    Redis.new(host: HOST, port: ENV.fetch(over == "relay" ? "RELAY" : "PORT").to_i)
  end
end

class Own < StandardError
end

class Cancelled < StandardError
end

class Wrong < StandardError
end

# Runs the steps of a case.
class Case
  OPTIONS = { "lease" => 1000.0, "wait" => 1000.0, "grace" => 1000.0 }.freeze

  def initialize(tag, client)
    @tag, @client, @locks = "{#{tag}}", client, LatchkeyLocks::Locks.new(client)
    @grants, @begun, @told = {}, {}, {}
  end

  def run(step)
    result = error = nil
    begin
      result = send("do_#{step['do']}", step)
    rescue Wrong
      raise
    rescue LatchkeyLocks::NotGranted => result
      error = "not granted"
    rescue LatchkeyLocks::LockLost => result
      error = "lost"
    rescue Own => result
      error = "own"
    rescue Cancelled => result
      error = "cancelled"
    rescue *REPLIES => result
      error = "server"
    end
    check(step, error == step["error"], error, result)
    check(step, result.holder == (step["holder"] && @grants[step["holder"]].owner), result.holder) if step.key?("holder")
    check(step, result.lock_error.is_a?(LatchkeyLocks::LockLost)) if step.key?("besides")
    grant(step, result) if %w[acquire permits].include?(step["do"]) && error.nil?
  end

  private

  def check(step, holds, *told)
    raise Wrong, "#{step}: #{told.inspect}" unless holds
  end

  def grant(step, result)
    check(step, result.fence > @grants[step["above"]].fence, result.fence) if step.key?("above")
    check(step, result.fence == @grants[step["same"]].fence, result.fence) if step.key?("same")
    check(step, [result.free, result.permits.size] == [step["free"], step.fetch("count", 1)], result.free) if step.key?("free")
    @grants[step["as"]] = result
  end

  def until_true(step)
    last = Process.clock_gettime(Process::CLOCK_MONOTONIC) + 20
    until yield
      check(step, Process.clock_gettime(Process::CLOCK_MONOTONIC) < last, "in vain")
      sleep 0.005
    end
  end

  def options(step)
    given = OPTIONS.filter_map { |name, unit| [name.to_sym, step[name] / unit] if step.key?(name) }.to_h
    given[:owner] = @grants[step["owner"]].owner if step.key?("owner")
    given
  end

  def keys(step)
    step["keys"].map { |key| @tag + key }
  end

  def do_acquire(step, &work)
    @locks.acquire(*keys(step), shared: step.fetch("shared", false), **options(step), &work)
  end

  def do_permits(step)
    @locks.permits(@tag + step["key"], step["limit"], step.fetch("count", 1), **options(step))
  end

  def do_begin(step)
    @begun[step["step"]["as"]] = Thread.new { run(step["step"]) }.tap { |thread| thread.report_on_exception = false }
  end

  def do_cancel(step)
    @begun[step["of"]].raise(Cancelled)
  end

  def do_end(step)
    check(step, @begun[step["of"]].join(20), "it waits")
  end

  def do_release(step)
    @grants[step["of"]].release(keep: step.fetch("keep", 0) / 1000.0)
  end

  def do_renew(step)
    @grants[step["of"]].renew(step.key?("lease") ? step["lease"] / 1000.0 : nil)
  end

  def do_held(step)
    check(step, @grants[step["of"]].held? == step["is"])
  end

  def do_attach(step)
    check(step, @grants[step["of"]].attach == step["is"])
  end

  def do_left(step)
    left = @grants[step["of"]].left * 1000
    check(step, left > step.fetch("above", -1) && left < step.fetch("below", 1e9), left)
  end

  def do_guarded(step)
    done = @client.multi do |transaction|
      @grants[step["of"]].guard(transaction)
      transaction.set(@tag + step["key"], step["value"])
    end
    check(step, !done.nil? == step["is"], done)
  end

  def do_watch(step)
    told = @told[step["of"]] = Queue.new
    @grants[step["of"]].watch { |error| told << error }
  end

  def do_told(step)
    return check(step, @told[step["of"]].empty?) unless step["is"]

    until_true(step) { !@told[step["of"]].empty? }
    check(step, @told[step["of"]].pop.is_a?(LatchkeyLocks::LockLost))
  end

  def do_scope(step)
    do_acquire(step) do |lock|
      @grants[step["as"]] = lock
      step["inside"].each { |one| run(one) }
      raise Own if step["raise"]
    end
  end

  def do_throttle(step)
    rest = { burst: step["burst"], quantity: step["quantity"] }.compact
    limit = @locks.throttle(@tag + step["key"], step["count"], step["period"], **rest)
    check(step, [limit.allowed?, limit.remaining] == [step["allowed"], step["remaining"]], limit)
  end

  def do_kill(_)
    client = Redis.new(host: HOST, port: ENV.fetch("PORT").to_i)
    client.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    client.close
  end

  def do_pause(step)
    sleep step["ms"] / 1000.0
  end

  def do_command(step)
    words = step["words"].map { |word| word.start_with?("$") ? @tag + word[1..] : word }
    reply = nil
    is_right = lambda do
      reply = @client.call(*words)
      reply = reply[step["item"]] if step.key?("item")
      reply = reply.size if step.key?("count")
      step.key?("above") ? reply > step["above"] : reply == step.fetch("count", step["reply"])
    end
    step["until"] ? until_true(step, &is_right) : check(step, is_right.call, reply)
  end
end

passed = failed = skipped = 0
JSON.parse(File.read(ARGV[0])).each_with_index do |one, at|
  one.fetch("over", %w[server cluster sentinel]).each do |over|
    if over == "sentinel" && ENV.fetch("SENTINEL").empty?
      skipped += 1
      next
    end
    begin
      client = client_of(over)
      running = Case.new("#{at}#{over}#{Process.clock_gettime(Process::CLOCK_MONOTONIC, :nanosecond)}", client)
      one["steps"].each { |step| running.run(step) }
      passed += 1
    rescue StandardError => error
      failed += 1
      puts "FAILED #{one['name']}, over #{over}: #{error.class}: #{error.message}"
    ensure
      client&.close
    end
  end
end
puts "ruby, redis-rb #{Redis::VERSION}: #{passed} passed, #{failed} failed, #{skipped} skipped"
exit failed.zero?
