# frozen_string_literal: true

module LatchkeyLocks
  # redis-rb 5 hands on the errors of redis-client, on which it is built, where sentinels are used.
  REPLIES = [Redis::CommandError, *(RedisClient::CommandError if defined?(RedisClient))].freeze
  BREAKS = [Redis::BaseConnectionError, *(RedisClient::ConnectionError if defined?(RedisClient))].freeze
  private_constant :REPLIES, :BREAKS

  # The seam to redis-rb: connections of its own, with the client's options, for one request or as long as a session. The client's
  # may be in use by another thread, would keep it for as long as a wait lasts, and repeats requests unseen.
  class Connections
    # How much longer than the server a client waits for the reply.
    PATIENCE = 5
    # How many connections rest at most.
    IDLE = 16
    # What concerns a cluster and none of its nodes.
    OF_CLUSTERS = %i[cluster nodes replica replica_affinity fixed_hostname concurrency slow_command_timeout].freeze

    attr_reader :client

    def initialize(client)
      @client = client.with { |one| one }
      # A cluster has no other way to them; those of its nodes are learnt by redirections.
      @options = @client.instance_variable_get(:@options)
      @idle = Hash.new { |all, node| all[node] = [] }
      @mutex = Mutex.new
    end

    # One request, which nothing repeats unseen, over any connection to a node; nil: any node.
    def ask(node, request, seconds, is_fresh)
      connection = (@mutex.synchronize { @idle[node].pop } unless is_fresh) || open(node)
      reply = Connections.ask(connection, request, seconds)
      connection = nil if @mutex.synchronize { @idle[node].size < IDLE && @idle[node].push(connection) }
      reply
    ensure
      connection&.close
    end

    def open(node)
      seeds = @options[:cluster] || @options[:nodes] or return @client.dup
      seed = seeds.sample
      seed = seed.is_a?(String) ? { url: seed } : seed.transform_keys(&:to_sym)
      # A server that does not know its own name gives none.
      place = node ? { host: node[0], port: node[1] }.reject { |_, part| part == "" } : {}
      place[:host] = @options[:fixed_hostname] if @options[:fixed_hostname]
      Redis.new(**@options.reject { |name, _| OF_CLUSTERS.include?(name) }, **seed, **place)
    end

    # The place and port to which an error leads, or nil.
    def self.moved(error)
      /\AMOVED \d+ (?<host>\S*):(?<port>\d+)/ =~ error.message && [host, port.to_i]
    end

    # The time-outs of the client do not count.
    def self.ask(connection, request, seconds)
      words = request.map(&:to_s)
      connection.without_reconnect do
        client = connection._client
        # From redis-rb 5 on.
        next client.blocking_call_v(seconds + PATIENCE, words) if client.respond_to?(:blocking_call_v)

        client.with_socket_timeout(seconds + PATIENCE) { client.call(words) }
      end
    end
  end
end
