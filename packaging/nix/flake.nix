# nix run 'git+file:///path/to/latchkey?dir=packaging/nix'
{
  description = "Server of the Redis protocol that understands locks, queues and time";

  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-unstable";

  outputs = { self, nixpkgs }:
    let
      systems = [ "x86_64-linux" "aarch64-linux" "x86_64-darwin" "aarch64-darwin" ];
      source = ../..;
      manifest = nixpkgs.lib.importTOML (source + "/Cargo.toml");
    in
    {
      packages = nixpkgs.lib.genAttrs systems (system:
        let pkgs = nixpkgs.legacyPackages.${system}; in
        {
          default = pkgs.rustPlatform.buildRustPackage {
            pname = manifest.package.name;
            version = manifest.package.version;
            src = source;
            cargoLock.lockFile = source + "/Cargo.lock";
            nativeBuildInputs = [ pkgs.installShellFiles ];
            # `make test` needs a network of its own.
            doCheck = false;
            postInstall = ''
              installManPage man/latchkey.1 man/latchkey.conf.5
              installShellCompletion --cmd latchkey --bash packaging/completions/latchkey.bash \
                --zsh packaging/completions/latchkey.zsh --fish packaging/completions/latchkey.fish
            '';
            meta = {
              description = manifest.package.description;
              license = pkgs.lib.licenses.asl20;
              mainProgram = "latchkey";
            };
          };
        });
    };
}
