// Command sbom writes the bill of materials of the programs that it is given, as of SOURCE_DATE_EPOCH: the components
// that the build information of the Go linker names. It is in the format of CycloneDX, with -spdx in that of SPDX.
package main

import (
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}

func run(programs []string, to io.Writer) error {
	seconds, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	if err != nil {
		return fmt.Errorf("SOURCE_DATE_EPOCH: %w", err)
	}
	spdx := len(programs) > 0 && programs[0] == "-spdx"
	if spdx {
		programs = programs[1:]
	}
	b, err := billOf(programs, time.Unix(seconds, 0))
	if err != nil {
		return err
	}
	var made any = b
	if spdx {
		if made, err = b.spdx(); err != nil {
			return err
		}
	}
	e := json.NewEncoder(to)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(made)
}

// A bill is a bill of materials in CycloneDX 1.6, as far as it is used here.
type bill struct {
	Format      string      `json:"bomFormat"`
	SpecVersion string      `json:"specVersion"`
	Version     int         `json:"version"`
	Metadata    metadata    `json:"metadata"`
	Components  []component `json:"components"`
}

type metadata struct {
	Timestamp string    `json:"timestamp"`
	Component component `json:"component"`
}

// A component is a program, a module or the standard library.
type component struct {
	Type       string     `json:"type"`
	Ref        string     `json:"bom-ref"`
	Name       string     `json:"name"`
	Version    string     `json:"version,omitempty"`
	PURL       string     `json:"purl"`
	Properties []property `json:"properties,omitempty"`
}

// A property is a fact for which the format has no word.
type property struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// billOf returns the bill of programs of one module, as of a time. Their order does not matter.
func billOf(programs []string, at time.Time) (bill, error) {
	b := bill{Format: "CycloneDX", SpecVersion: "1.6", Version: 1}
	found := map[string]component{}
	var names []string
	for _, path := range programs {
		info, err := buildinfo.ReadFile(path)
		if err != nil {
			return bill{}, fmt.Errorf("read what %s is made of: %w", path, err)
		}
		names = append(names, filepath.Base(path))
		main := componentOf("application", &info.Main)
		for _, s := range info.Settings {
			if slices.Contains([]string{"GOOS", "GOARCH", "CGO_ENABLED"}, s.Key) {
				main.Properties = append(main.Properties, property{s.Key, s.Value})
			}
		}
		b.Metadata.Component = main
		std := componentOf("library", &debug.Module{Path: "std", Version: strings.TrimPrefix(info.GoVersion, "go")})
		found[std.Ref] = std
		for _, m := range info.Deps {
			if m.Replace != nil {
				m = m.Replace
			}
			c := componentOf("library", m)
			found[c.Ref] = c
		}
	}
	slices.Sort(names)
	main := &b.Metadata.Component
	main.Properties = append(main.Properties, property{"programs", strings.Join(names, " ")})
	b.Metadata.Timestamp = at.UTC().Format(time.RFC3339)
	for _, c := range found {
		b.Components = append(b.Components, c)
	}
	slices.SortFunc(b.Components, func(a, b component) int { return strings.Compare(a.Ref, b.Ref) })
	return b, nil
}

func componentOf(kind string, m *debug.Module) component {
	version := m.Version
	if version == "(devel)" { // a build that looked at no version control
		version = ""
	}
	purl := "pkg:golang/" + strings.ReplaceAll(url.PathEscape(m.Path), "%2F", "/")
	if version != "" {
		purl += "@" + url.PathEscape(version)
	}
	c := component{Type: kind, Ref: purl, Name: m.Path, Version: version, PURL: purl}
	if m.Sum != "" {
		c.Properties = []property{{"go:sum", m.Sum}}
	}
	return c
}
