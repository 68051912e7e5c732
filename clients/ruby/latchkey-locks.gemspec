# frozen_string_literal: true

Gem::Specification.new do |gem|
  gem.name = "latchkey-locks"
  gem.version = "0.2.0"
  gem.summary = "Locks, semaphores and rate limits of a Latchkey server, for redis-rb"
  gem.authors = ["The Latchkey authors"]
  gem.license = "Apache-2.0"
  gem.homepage = "https://latchkey.test/locks"
  gem.files = Dir["lib/**/*.rb", "README.md", base: __dir__]
  gem.required_ruby_version = ">= 2.7"
  gem.add_dependency "redis", ">= 4.8", "< 6"
end
