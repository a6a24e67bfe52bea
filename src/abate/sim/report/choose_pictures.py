"""Chooses the pictures of a study."""

from __future__ import annotations

from collections.abc import Sequence

from abate.sim.report.picture import Picture
from abate.sim.report.service_pictures import fits_service_picture, service_picture
from abate.sim.report.survey_pictures import hysteresis_picture, map_picture
from abate.sim.report.sweep_pictures import sweep_picture, swept_number
from abate.sim.report.time_pictures import has_dots, herd_picture, load_picture
from abate.sim.study import Study
from abate.sim.surveys import Hysteresis, RecoveryMap

Survey = RecoveryMap | Hysteresis


def choose_pictures(study: Study, surveys: Sequence[Survey] = ()) -> list[Picture]:
    """Return the pictures of a study: lines if a number is swept, else load, services and herd; then its surveys.

    >>> from abate.sim import load_scenario, run_study
    >>> study = run_study(load_scenario("herd").changed("clients.count=20"), seeds=1, raster=True)
    >>> [picture.name for picture in choose_pictures(study)]
    ['load', 'herd']
    """
    results = [result for result in study.results if result.samples]
    name = study.scenario.name
    found = []
    if results:
        swept = swept_number([result.case for result in results])
        if swept is not None:
            found.append(sweep_picture(results, swept))
        else:
            found.append(load_picture([*results, *(ideal for ideal in study.oracles if ideal.samples)], name))
            if fits_service_picture(results):
                found.append(service_picture(results, name))
            dotted = [result for result in results if has_dots(result)]
            if dotted:
                found.append(herd_picture(dotted, name))
    for survey in surveys:
        found.append(map_picture(survey, name) if isinstance(survey, RecoveryMap) else hysteresis_picture(survey, name))
    return found
