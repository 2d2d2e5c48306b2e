package main

import (
	"bytes"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
)

// The test's own program is one that was built from modules.
func TestBillNamesTheModulesOfAProgram(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "1700000000")
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var text, again bytes.Buffer
	if run([]string{path}, &text) != nil || run([]string{path, path}, &again) != nil {
		t.Fatal("the program has no bill")
	}
	var read struct {
		BOMFormat  string
		Metadata   struct{ Timestamp string }
		Components []struct{ Purl, Version string }
	}
	if err := json.Unmarshal(text.Bytes(), &read); err != nil {
		t.Fatal(err)
	}
	if read.BOMFormat != "CycloneDX" || read.Metadata.Timestamp != "2023-11-14T22:13:20Z" {
		t.Errorf("bill of %q as of %q; want CycloneDX as of the time that was given", read.BOMFormat, read.Metadata.Timestamp)
	}
	var purls []string
	for _, c := range read.Components {
		purls = append(purls, c.Purl)
	}
	if !slices.IsSorted(purls) || len(slices.Compact(slices.Clone(purls))) != len(purls) {
		t.Errorf("components %q; want each once, in order", purls)
	}
	if !slices.ContainsFunc(purls, func(p string) bool { return strings.HasPrefix(p, "pkg:golang/std@1.") }) {
		t.Errorf("components %q; want the standard library among them", purls)
	}
}

func TestBillOfAnotherFileIsAnError(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "1700000000")
	path := t.TempDir() + "/text"
	if err := os.WriteFile(path, []byte("no program"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := run([]string{path}, &bytes.Buffer{}); err == nil {
		t.Error("the bill of a text = nil; want an error")
	}
}
