package release

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
)

// verifyContents verifies what files say, after the files.
func (d *directory) verifyContents(ctx context.Context) {
	d.verifyProvenance()
	if name := d.one("pullgate-image-*.oci.tar", "the container image"); name != "" {
		if architectures, err := d.verifyImage(ctx, name); err != nil {
			d.problem(name, err)
		} else {
			d.verifyBills(architectures)
		}
	}
	if name := d.one("pullgate-chart-*.tgz", "the Helm chart"); name != "" {
		if err := d.verifyChart(ctx, name); err != nil {
			d.problem(name, err)
		}
	}
	if name := d.one("*.openvex.json", "the OpenVEX document"); name != "" {
		if err := d.verifyVEX(name); err != nil {
			d.problem(name, err)
		}
	}
	d.one("SECURITY-INSIGHTS.yml", "how the project handles vulnerabilities")
}

type provenance struct {
	Type          string `json:"_type"`
	PredicateType string `json:"predicateType"`
	Subject       []struct {
		Name   string            `json:"name"`
		Digest map[string]string `json:"digest"`
	} `json:"subject"`
	Predicate struct {
		BuildDefinition struct {
			ExternalParameters struct{ Version string } `json:"externalParameters"`
			InternalParameters struct {
				TestKey bool `json:"testKey"`
			} `json:"internalParameters"`
			ResolvedDependencies []struct {
				URI    string            `json:"uri"`
				Digest map[string]string `json:"digest"`
			} `json:"resolvedDependencies"`
		} `json:"buildDefinition"`
	} `json:"predicate"`
}

const statementType = "https://in-toto.io/Statement/v1"

func (d *directory) verifyProvenance() {
	name := d.one("*"+provenanceSuffix, "its provenance")
	if name == "" {
		return
	}
	if err := d.readProvenance(name); err != nil {
		d.problem(name, err)
	}
}

func (d *directory) readProvenance(name string) error {
	bundle, err := d.document(name)
	if err != nil {
		return err
	}
	statement, err := verifyStatement(bundle, d.key)
	if err != nil {
		return err
	}
	var p provenance
	if err := json.Unmarshal(statement, &p); err != nil {
		return fmt.Errorf("the statement cannot be read: %w", err)
	}
	if p.Type != statementType || p.PredicateType != "https://slsa.dev/provenance/v1" {
		return fmt.Errorf("it is a %s with a predicate %s; want SLSA provenance v1", p.Type, p.PredicateType)
	}
	built := p.Predicate.BuildDefinition
	if built.InternalParameters.TestKey != d.TestKey {
		return errors.New("it says that the key is for tests, or that it is not, in contradiction to the release")
	}
	subjects := map[string]string{}
	for _, s := range p.Subject {
		if subjects[s.Name] != "" {
			return fmt.Errorf("it names %s twice", s.Name)
		}
		subjects[s.Name] = s.Digest["sha256"]
	}
	for _, file := range slices.Sorted(maps.Keys(d.sums)) {
		switch sum := d.sums[file]; {
		case sum != "" && subjects[file] != sum:
			return fmt.Errorf("it says that %s has the sum %q, which has %s", file, subjects[file], sum)
		case sum != "":
			delete(subjects, file)
		}
	}
	for file := range subjects {
		return fmt.Errorf("it says that the release has a file %s", file)
	}
	if len(built.ResolvedDependencies) == 0 || built.ExternalParameters.Version == "" {
		return errors.New("it names no version or no source")
	}
	source := built.ResolvedDependencies[0]
	commit := source.Digest["gitCommit"]
	if !strings.HasSuffix(source.URI, "@refs/tags/"+built.ExternalParameters.Version) ||
		!regexp.MustCompile(`^[0-9a-f]{40,64}$`).MatchString(commit) {
		return fmt.Errorf("its source is %s at commit %q; want the tag %s and a commit", source.URI, commit,
			built.ExternalParameters.Version)
	}
	d.Version, d.Commit = built.ExternalParameters.Version, commit
	return nil
}

// sameVersion returns an error if what a file says of its version is not what the provenance says.
func (d *directory) sameVersion(what, version string) error {
	if d.Version != "" && version != d.Version {
		return fmt.Errorf("%s is %q; the provenance says %s", what, version, d.Version)
	}
	return nil
}

func (d *directory) verifyChart(ctx context.Context, name string) error {
	file, err := d.open(name)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	zipped, err := gzip.NewReader(reader{ctx, file})
	if err != nil {
		return err
	}
	files := tar.NewReader(io.LimitReader(zipped, maxDocument))
	for {
		h, err := files.Next()
		if err != nil {
			return fmt.Errorf("it has no pullgate/Chart.yaml: %w", err)
		}
		if h.Name != "pullgate/Chart.yaml" {
			continue
		}
		text, err := io.ReadAll(files)
		if err != nil {
			return err
		}
		version := regexp.MustCompile(`(?m)^appVersion: (\S+)$`).FindSubmatch(text)
		if version == nil {
			return errors.New("pullgate/Chart.yaml has no appVersion")
		}
		return d.sameVersion("its appVersion", string(version[1]))
	}
}

func (d *directory) verifyVEX(name string) error {
	data, err := d.document(name)
	if err != nil {
		return err
	}
	var vex struct {
		Context    string `json:"@context"`
		Statements []struct {
			Vulnerability struct{ Name string }
			Status        string
		}
	}
	if err := json.Unmarshal(data, &vex); err != nil {
		return err
	}
	if !strings.HasPrefix(vex.Context, "https://openvex.dev/ns/v0.") {
		return fmt.Errorf("its @context is %q; want that of OpenVEX", vex.Context)
	}
	for n, s := range vex.Statements {
		valid := []string{"not_affected", "affected", "fixed", "under_investigation"}
		if s.Vulnerability.Name == "" || !slices.Contains(valid, s.Status) {
			return fmt.Errorf("statement %d, about %q, has the status %q", n+1, s.Vulnerability.Name, s.Status)
		}
	}
	return nil
}

// purlOf returns the package URL of a module, as bills of materials have it.
func purlOf(m *debug.Module) string {
	purl := "pkg:golang/" + strings.ReplaceAll(url.PathEscape(m.Path), "%2F", "/")
	if m.Version != "" && m.Version != "(devel)" {
		purl += "@" + url.PathEscape(m.Version)
	}
	return purl
}

// verifyBills compares both bills of each architecture with the modules of its programs, by their package URLs.
func (d *directory) verifyBills(architectures map[string]map[string]bool) {
	for _, arch := range slices.Sorted(maps.Keys(architectures)) {
		for suffix, read := range map[string]func([]byte) (map[string]bool, error){
			".cdx.json": readCycloneDX, ".spdx.json": readSPDX,
		} {
			name := d.one("pullgate_*_"+arch+suffix, "a bill of materials for "+arch)
			if name == "" {
				continue
			}
			data, err := d.document(name)
			var listed map[string]bool
			if err == nil {
				listed, err = read(data)
			}
			if err == nil {
				err = sameModules(listed, architectures[arch])
			}
			if err != nil {
				d.problem(name, err)
			}
		}
	}
	for name := range d.sums {
		parts := regexp.MustCompile(`_([a-z0-9]+)\.(cdx|spdx)\.json$`).FindStringSubmatch(name)
		if parts != nil && architectures[parts[1]] == nil {
			d.problemf(name, "the image has no programs for %s", parts[1])
		}
	}
}

func sameModules(listed, linked map[string]bool) error {
	for _, m := range slices.Sorted(maps.Keys(linked)) {
		if !listed[m] {
			return fmt.Errorf("it does not list %s, from which a program in the image was linked", m)
		}
	}
	for _, m := range slices.Sorted(maps.Keys(listed)) {
		if !linked[m] {
			return fmt.Errorf("it lists %s, from which no program in the image was linked", m)
		}
	}
	return nil
}

func readCycloneDX(data []byte) (map[string]bool, error) {
	var bill struct {
		BOMFormat  string
		Metadata   struct{ Component struct{ PURL string } }
		Components []struct{ PURL string }
	}
	if err := json.Unmarshal(data, &bill); err != nil {
		return nil, err
	}
	if bill.BOMFormat != "CycloneDX" {
		return nil, fmt.Errorf("its format is %q; want CycloneDX", bill.BOMFormat)
	}
	all := map[string]bool{bill.Metadata.Component.PURL: true}
	for _, c := range bill.Components {
		all[c.PURL] = true
	}
	return all, nil
}

func readSPDX(data []byte) (map[string]bool, error) {
	var bill struct {
		SPDXVersion string
		Packages    []struct {
			ExternalRefs []struct{ ReferenceType, ReferenceLocator string }
		}
	}
	if err := json.Unmarshal(data, &bill); err != nil {
		return nil, err
	}
	if bill.SPDXVersion != "SPDX-2.3" {
		return nil, fmt.Errorf("its version is %q; want SPDX-2.3", bill.SPDXVersion)
	}
	all := map[string]bool{}
	for _, p := range bill.Packages {
		for _, r := range p.ExternalRefs {
			if r.ReferenceType == "purl" {
				all[r.ReferenceLocator] = true
			}
		}
	}
	return all, nil
}
