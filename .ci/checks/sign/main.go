// Command sign signs a release with a key, and without a network:
//
//	sign test-key FILE             write a new key, whose signatures are marked as a test
//	sign public KEY                print the public key in PEM form
//	sign files KEY FILE…           write FILE.sigstore.json for each file
//	sign provenance KEY DIR FILE   write how the files in DIR/SHA256SUMS were built, as a signed statement
//
// A key is a file of cosign generate-key-pair, which COSIGN_PASSWORD decrypts, or a plain one in PEM form.
package main

import (
	"encoding/pem"
	"fmt"
	"io"
	"os"

	"github.com/pullgate/pullgate/checks/signing"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "sign:", err)
		os.Exit(1)
	}
}

func run(args []string, to io.Writer) error {
	if len(args) == 2 && args[0] == "test-key" {
		return signing.NewTestKey(args[1])
	}
	if len(args) < 2 {
		return fmt.Errorf("%d arguments; want a command and a key", len(args))
	}
	key, err := signing.Load(args[1])
	if err != nil {
		return err
	}
	switch rest := args[2:]; {
	case args[0] == "public" && len(rest) == 0:
		return public(key, to)
	case args[0] == "files" && len(rest) > 0:
		return files(key, rest)
	case args[0] == "provenance" && len(rest) == 2:
		return provenance(key, rest[0], rest[1])
	}
	return fmt.Errorf("no command %q with %d arguments", args[0], len(args)-1)
}

func public(key *signing.Key, to io.Writer) error {
	der, err := key.Public()
	if err != nil {
		return err
	}
	return pem.Encode(to, &pem.Block{Type: "PUBLIC KEY", Bytes: der})
}

func files(key *signing.Key, names []string) error {
	for _, name := range names {
		content, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		bundle, err := key.File(content)
		if err != nil {
			return err
		}
		if err := os.WriteFile(name+".sigstore.json", bundle, 0o644); err != nil {
			return err
		}
	}
	return nil
}
