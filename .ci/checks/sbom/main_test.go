package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"regexp"
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

// Both formats name the same packages.
func TestFormatsHaveTheSameContent(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "1700000000")
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var cyclone, spdx bytes.Buffer
	if run([]string{path}, &cyclone) != nil || run([]string{"-spdx", path}, &spdx) != nil {
		t.Fatal("the program has no bill")
	}
	var b bill
	var d document
	if err := errors.Join(json.Unmarshal(cyclone.Bytes(), &b), json.Unmarshal(spdx.Bytes(), &d)); err != nil {
		t.Fatal(err)
	}
	want := []string{b.Metadata.Component.PURL}
	for _, c := range b.Components {
		want = append(want, c.PURL)
	}
	var got, ids []string
	for n, p := range d.Packages {
		got, ids = append(got, p.References[0].Locator), append(ids, p.ID)
		if r := d.Relationships[n]; r.Related != p.ID {
			t.Errorf("relationship %d is about %s; want %s", n, r.Related, p.ID)
		}
		if !regexp.MustCompile(`^SPDXRef-[A-Za-z0-9.-]+$`).MatchString(p.ID) {
			t.Errorf("%q is not an identifier of SPDX", p.ID)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("SPDX names %q, CycloneDX %q; want the same", got, want)
	}
	slices.Sort(ids)
	if len(slices.Compact(ids)) != len(want) {
		t.Errorf("identifiers %q; want each once", ids)
	}
}
