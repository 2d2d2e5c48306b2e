package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// A document is a bill of materials in SPDX 2.3, as far as it is used here.
type document struct {
	Version       string         `json:"spdxVersion"`
	DataLicense   string         `json:"dataLicense"`
	ID            string         `json:"SPDXID"`
	Name          string         `json:"name"`
	Namespace     string         `json:"documentNamespace"`
	Creation      creation       `json:"creationInfo"`
	Describes     []string       `json:"documentDescribes"`
	Packages      []spdxPackage  `json:"packages"`
	Relationships []relationship `json:"relationships"`
}

type creation struct {
	Created  string   `json:"created"`
	Creators []string `json:"creators"`
}

type spdxPackage struct {
	ID               string        `json:"SPDXID"`
	Name             string        `json:"name"`
	Version          string        `json:"versionInfo,omitempty"`
	DownloadLocation string        `json:"downloadLocation"`
	FilesAnalyzed    bool          `json:"filesAnalyzed"`
	LicenceConcluded string        `json:"licenseConcluded"`
	LicenceDeclared  string        `json:"licenseDeclared"`
	Copyright        string        `json:"copyrightText"`
	Purpose          string        `json:"primaryPackagePurpose"`
	Comment          string        `json:"comment,omitempty"`
	References       []externalRef `json:"externalRefs"`
}

type externalRef struct {
	Category string `json:"referenceCategory"`
	Type     string `json:"referenceType"`
	Locator  string `json:"referenceLocator"`
}

type relationship struct {
	Element string `json:"spdxElementId"`
	Type    string `json:"relationshipType"`
	Related string `json:"relatedSpdxElement"`
}

const noAssertion = "NOASSERTION"

// spdx returns the same bill in the other format.
func (b bill) spdx() (document, error) {
	content, err := json.Marshal(b)
	if err != nil {
		return document{}, err
	}
	main := b.Metadata.Component
	// The name space of two different bills must be different.
	sum := sha256.Sum256(content)
	d := document{
		Version: "SPDX-2.3", DataLicense: "CC0-1.0", ID: "SPDXRef-DOCUMENT", Name: main.Name,
		Namespace: fmt.Sprintf("https://pullgate.dev/spdx/%s", hex.EncodeToString(sum[:])),
		Creation:  creation{b.Metadata.Timestamp, []string{"Organization: The pullgate authors"}},
		Describes: []string{spdxID(main)},
	}
	for n, c := range slices.Concat([]component{main}, b.Components) {
		p := spdxPackage{
			ID: spdxID(c), Name: c.Name, Version: c.Version, DownloadLocation: noAssertion,
			LicenceConcluded: noAssertion, LicenceDeclared: noAssertion, Copyright: noAssertion,
			Purpose:    strings.ToUpper(c.Type),
			References: []externalRef{{"PACKAGE-MANAGER", "purl", c.PURL}},
		}
		var facts []string
		for _, f := range c.Properties {
			facts = append(facts, f.Name+"="+f.Value)
		}
		p.Comment = strings.Join(facts, "; ")
		r := relationship{d.ID, "DESCRIBES", p.ID}
		if n > 0 {
			r = relationship{d.Describes[0], "DEPENDS_ON", p.ID}
		} else {
			p.LicenceDeclared = "Apache-2.0"
		}
		d.Packages, d.Relationships = append(d.Packages, p), append(d.Relationships, r)
	}
	return d, nil
}

// spdxID returns an identifier, which has letters, digits, dots and dashes only.
func spdxID(c component) string {
	sum := sha256.Sum256([]byte(c.PURL))
	readable := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '-' {
			return r
		}
		return '-'
	}, c.Name)
	return "SPDXRef-" + readable + "-" + hex.EncodeToString(sum[:4])
}
