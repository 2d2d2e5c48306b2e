package sbom

import (
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

// A Bill is a bill of materials in CycloneDX 1.6, as far as it is used here.
type Bill struct {
	Format      string      `json:"bomFormat"`
	SpecVersion string      `json:"specVersion"`
	Version     int         `json:"version"`
	Metadata    Metadata    `json:"metadata"`
	Components  []Component `json:"components"`
}

// Metadata describe the subject of the bill.
type Metadata struct {
	Timestamp string    `json:"timestamp"`
	Component Component `json:"component"`
}

// A Component is a program, a module or the standard library.
type Component struct {
	Type       string     `json:"type"`
	Ref        string     `json:"bom-ref"`
	Name       string     `json:"name"`
	Version    string     `json:"version,omitempty"`
	PURL       string     `json:"purl"`
	Properties []Property `json:"properties,omitempty"`
}

// A Property is a fact for which the format has no word.
type Property struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Of returns the bill of some programs that one module was built to, as of a time. The same programs have the same
// bill, whatever the order that they are given in.
func Of(programs []string, at time.Time) (Bill, error) {
	b := Bill{Format: "CycloneDX", SpecVersion: "1.6", Version: 1}
	found := map[string]Component{}
	var names []string
	for _, path := range programs {
		info, err := buildinfo.ReadFile(path)
		if err != nil {
			return Bill{}, fmt.Errorf("read what %s is made of: %w", path, err)
		}
		names = append(names, filepath.Base(path))
		main := component("application", &info.Main)
		for _, s := range info.Settings {
			if slices.Contains([]string{"GOOS", "GOARCH", "CGO_ENABLED"}, s.Key) {
				main.Properties = append(main.Properties, Property{s.Key, s.Value})
			}
		}
		b.Metadata.Component = main
		std := component("library", &debug.Module{Path: "std", Version: strings.TrimPrefix(info.GoVersion, "go")})
		found[std.Ref] = std
		for _, m := range info.Deps {
			if m.Replace != nil {
				m = m.Replace
			}
			c := component("library", m)
			found[c.Ref] = c
		}
	}
	slices.Sort(names)
	b.Metadata.Component.Properties = append(b.Metadata.Component.Properties, Property{"programs", strings.Join(names, " ")})
	b.Metadata.Timestamp = at.UTC().Format(time.RFC3339)
	for _, c := range found {
		b.Components = append(b.Components, c)
	}
	slices.SortFunc(b.Components, func(a, b Component) int { return strings.Compare(a.Ref, b.Ref) })
	return b, nil
}

func component(kind string, m *debug.Module) Component {
	version := m.Version
	if version == "(devel)" { // a build that looked at no version control
		version = ""
	}
	purl := "pkg:golang/" + strings.ReplaceAll(url.PathEscape(m.Path), "%2F", "/")
	if version != "" {
		purl += "@" + url.PathEscape(version)
	}
	c := Component{Type: kind, Ref: purl, Name: m.Path, Version: version, PURL: purl}
	if m.Sum != "" {
		c.Properties = []Property{{"go:sum", m.Sum}}
	}
	return c
}

// Write writes a bill as JSON.
func (b Bill) Write(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(b)
}
