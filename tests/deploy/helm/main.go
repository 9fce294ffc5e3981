// SPDX-License-Identifier: Apache-2.0

// Lints a chart and renders it, as `helm lint` and `helm template` do, with Helm's own packages.
//
//	go run . CHART NAMESPACE KUBERNETES-MINOR [VALUES...]
package main

import (
	"fmt"
	"os"
	"sort"
	"strings"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
)

func main() {
	if err := render(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func render(words []string) error {
	chart, err := loader.Load(words[0])
	if err != nil {
		return err
	}
	given := map[string]interface{}{}
	for _, path := range words[3:] {
		values, err := chartutil.ReadValuesFile(path)
		if err != nil {
			return err
		}
		given = chartutil.CoalesceTables(values, given)
	}
	can := *chartutil.DefaultCapabilities
	can.KubeVersion = chartutil.KubeVersion{Version: "v1." + words[2] + ".0", Major: "1", Minor: words[2]}
	release := chartutil.ReleaseOptions{Name: "weir", Namespace: words[1], Revision: 1, IsInstall: true}
	values, err := chartutil.ToRenderValues(chart, given, release, &can)
	if err != nil {
		return err
	}
	for _, message := range lint.AllWithKubeVersion(words[0], given, words[1], &can.KubeVersion).Messages {
		if message.Severity > support.InfoSev {
			return message
		}
	}
	files, err := engine.Engine{Strict: true}.Render(chart, values)
	if err != nil {
		return err
	}
	names := make([]string, 0, len(files))
	for name := range files {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		if text := strings.TrimSpace(files[name]); text != "" && strings.HasSuffix(name, ".yaml") {
			fmt.Printf("---\n# Source: %s\n%s\n", name, text)
		}
	}
	return nil
}
