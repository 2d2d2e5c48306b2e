package main

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/pullgate/pullgate/checks/signing"
)

// page describes what a statement of this command means.
const page = "https://github.com/pullgate/pullgate/blob/main/docs/design/releasing.md"

// A descriptor is a resource of the in-toto specification.
type descriptor struct {
	Name   string            `json:"name,omitempty"`
	URI    string            `json:"uri,omitempty"`
	Digest map[string]string `json:"digest"`
}

type object = map[string]any

// provenance writes a statement with the SLSA predicate provenance v1. What it says comes from the environment that
// make sets, from the sums, and from the bills of materials among the files.
func provenance(key *signing.Key, dir, file string) error {
	said := object{}
	for _, name := range []string{"VERSION", "COMMIT", "PACKAGE_VERSION", "ARCHES", "SOURCE_DATE_EPOCH", "RELEASE_KEY"} {
		value, ok := os.LookupEnv(name)
		if !ok {
			return fmt.Errorf("no %s in the environment", name)
		}
		if name != "COMMIT" && value != "" {
			said[name] = value
		}
	}
	said["targets"] = []string{"package", "image", "chart", "repository"}
	subjects, err := sums(dir)
	if err != nil {
		return err
	}
	modules, err := modulesOf(dir)
	if err != nil {
		return err
	}
	source := descriptor{
		URI:    "git+https://github.com/pullgate/pullgate@refs/tags/" + os.Getenv("VERSION"),
		Digest: map[string]string{"gitCommit": os.Getenv("COMMIT")},
	}
	statement, err := json.Marshal(object{
		"_type": "https://in-toto.io/Statement/v1", "subject": subjects, "predicateType": "https://slsa.dev/provenance/v1",
		"predicate": object{
			"buildDefinition": object{
				"buildType": page + "#how-it-is-built", "externalParameters": said,
				"internalParameters":   object{"testKey": key.Test},
				"resolvedDependencies": append([]descriptor{source}, modules...),
			},
			"runDetails": object{"builder": object{
				"id": page + "#who-builds-it", "version": map[string]string{"go": runtime.Version()},
			}},
		},
	})
	if err != nil {
		return err
	}
	bundle, err := key.Statement(statement)
	if err != nil {
		return err
	}
	return os.WriteFile(file, bundle, 0o644)
}

// sums returns the files that DIR/SHA256SUMS lists.
func sums(dir string) (all []descriptor, err error) {
	data, err := os.ReadFile(filepath.Join(dir, "SHA256SUMS"))
	for line := range strings.Lines(string(data)) {
		sum, name, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "  ")
		if !ok {
			return nil, fmt.Errorf("SHA256SUMS: a line %q", line)
		}
		all = append(all, descriptor{Name: name, Digest: map[string]string{"sha256": sum}})
	}
	return all, err
}

// modulesOf returns the modules in the bills of materials of a folder, each once and with its checksum.
func modulesOf(dir string) (all []descriptor, err error) {
	bills, err := filepath.Glob(filepath.Join(dir, "*.cdx.json"))
	if err == nil && len(bills) == 0 {
		err = fmt.Errorf("no bill of materials in %s", dir)
	}
	found := map[string]descriptor{}
	for _, name := range bills {
		var bill struct {
			Components []struct {
				PURL       string
				Properties []struct{ Name, Value string }
			}
		}
		data, err := os.ReadFile(name)
		if err == nil {
			err = json.Unmarshal(data, &bill)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		for _, c := range bill.Components {
			for _, p := range c.Properties {
				sum, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(p.Value, "h1:"))
				if p.Name != "go:sum" || err != nil {
					return nil, fmt.Errorf("%s: %s has a property %s=%s", name, c.PURL, p.Name, p.Value)
				}
				found[c.PURL] = descriptor{URI: c.PURL, Digest: map[string]string{"dirHash": hex.EncodeToString(sum)}}
			}
		}
	}
	for _, d := range found {
		all = append(all, d)
	}
	slices.SortFunc(all, func(a, b descriptor) int { return strings.Compare(a.URI, b.URI) })
	return all, err
}
