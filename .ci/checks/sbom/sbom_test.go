package sbom_test

import (
	"bytes"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pullgate/pullgate/checks/sbom"
)

// The test's own program is one that was built from modules.
func TestBillNamesTheModulesOfAProgram(t *testing.T) {
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	at := time.Unix(1_700_000_000, 0)
	bill, err := sbom.Of([]string{path}, at)
	if err != nil {
		t.Fatal(err)
	}
	var text, again bytes.Buffer
	if err := bill.Write(&text); err != nil {
		t.Fatal(err)
	}
	if bill, err = sbom.Of([]string{path, path}, at); err != nil {
		t.Fatal(err)
	}
	if err := bill.Write(&again); err != nil {
		t.Fatal(err)
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
	path := t.TempDir() + "/text"
	if err := os.WriteFile(path, []byte("no program"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := sbom.Of([]string{path}, time.Time{}); err == nil {
		t.Error("Of a text = nil; want an error")
	}
}
